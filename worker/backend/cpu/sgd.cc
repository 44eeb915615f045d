// As torch.optim.SGD with dampening 0: decay joins the gradient, momentum remembers it.
#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

HEADRACE_KERNEL void Plain(float* __restrict w, const float* __restrict g, int64_t begin,
                           int64_t end, const SgdStep& step) {
  const float rate = step.learning_rate, decay = step.weight_decay, scale = step.gradient_scale;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) w[i] -= rate * (g[i] * scale + decay * w[i]);
}

HEADRACE_KERNEL void Momentum(float* __restrict w, const float* __restrict g,
                              float* __restrict buffer, int64_t begin, int64_t end,
                              const SgdStep& step) {
  const float rate = step.learning_rate, decay = step.weight_decay, scale = step.gradient_scale;
  const float momentum = step.momentum;
  const bool first = step.first, nesterov = step.nesterov;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float gradient = g[i] * scale + decay * w[i];
    const float b = first ? gradient : momentum * buffer[i] + gradient;
    buffer[i] = b;
    w[i] -= rate * (nesterov ? gradient + momentum * b : b);
  }
}

}  // namespace

void CpuOps::Sgd(std::span<const UpdatedTensor> tensors, const SgdStep& step) {
  for (const UpdatedTensor& t : tensors) {
    ParallelRanges(threads_, t.count, kElementGrain, [&](int64_t begin, int64_t end) {
      if (step.momentum == 0.0f) {
        Plain(t.w, t.g, begin, end, step);
      } else {
        Momentum(t.w, t.g, t.state, begin, end, step);
      }
    });
  }
}

}  // namespace headrace
