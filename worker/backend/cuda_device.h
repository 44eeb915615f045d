// A CUDA device as a worker computes on it: libheadrace_cuda.so, opened once a driver has answered,
// and a session of it for each stage.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/compute_device.h"
#include "worker/backend/cuda/module.h"

namespace headrace {

// Where the module is looked for, the first that is there: $HEADRACE_CUDA_MODULE (a file, and then
// no other place), beside the program, in ../lib/headrace and ../lib beside it.
std::vector<std::string> CudaModulePaths();

// Opens the module, which stays open. Any thread.
//   FAILED_PRECONDITION  it is nowhere, cannot be opened (what the loader says), or is of another
//                        version of Headrace
absl::StatusOr<const cuda::Module*> OpenCudaModule(const std::vector<std::string>& paths);

// Devices of needs of its kind, on device `index` of the module.
DeviceOpener CudaOpener(const cuda::Module* module, int index);

}  // namespace headrace
