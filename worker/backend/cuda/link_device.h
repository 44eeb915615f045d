// A session's device as links see it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "worker/backend/link_device.h"

namespace headrace::cuda {

// Of the calling thread's device, whose compute runs on `stream` in `memory` of `bytes`, from
// cudaMalloc; both must outlive it. Null: see `failure`.
std::unique_ptr<LinkDevice> OpenLinkDevice(cudaStream_t stream, void* memory, int64_t bytes,
                                           DeviceFailure* failure);

}  // namespace headrace::cuda
