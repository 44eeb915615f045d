// Whether this module has code for the device at hand.
#pragma once

#include <cuda_runtime_api.h>

namespace headrace::cuda {

// Starts a kernel that does nothing. cudaErrorNoKernelImageForDevice: the module was built for other
// compute capabilities.
cudaError_t RunNothing(cudaStream_t stream);

}  // namespace headrace::cuda
