// worker/backend/ops.h on a CUDA device. Each op is put on one stream and returns at once.
//
// Two precisions. fp32: everything in fp32. bf16: activations and their gradients lie in bfloat16
// and are multiplied by tensor cores with weights rounded to bfloat16; sums, norms, softmax,
// losses, weights, their gradients and updates are fp32 or double.
//
// Ops return nothing, so a failure is remembered: error() says what failed first; later ops do
// nothing. Not thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "worker/backend/cuda/gemm.h"
#include "worker/backend/ops.h"

namespace headrace::cuda {

enum class Precision { kFloat32, kBfloat16 };

// Device memory that ops use among themselves; lives as long as the Ops. An op that needs more than
// `bytes` fails, naming both figures.
struct Scratch {
  void* data = nullptr;
  int64_t bytes = 0;
};

class CudaOps : public Ops {
 public:
  // What of the last op failed first: the call, CUDA's text and the op; empty if nothing did.
  virtual const std::string& error() const = 0;
};

// `gemm` and `scratch` must outlive the ops. The calling thread's device is the one computed on.
std::unique_ptr<CudaOps> CreateCudaOps(Precision precision, Gemm* gemm, Scratch scratch,
                                       cudaStream_t stream);

}  // namespace headrace::cuda
