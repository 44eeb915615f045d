// Sessions, with whatever computes products.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/module.h"

namespace headrace::cuda {

// Makes the products of a session, whose stream shares `workspace`. Null: *error says why.
using GemmFactory = std::function<std::unique_ptr<Gemm>(void* workspace, size_t workspace_bytes,
                                                        bool tf32, std::string* error)>;

// Takes the device and all its memory at once, or nothing: what was taken before a failure is given
// back. Null: *failure names the call, CUDA's text, and for memory how much there was.
std::unique_ptr<Session> OpenSession(const SessionOptions& options, const GemmFactory& factory,
                                     Failure* failure);

// Module::probe.
bool ProbeSession(int device, DeviceReport* report, Failure* failure);

}  // namespace headrace::cuda
