// As torch.optim.AdamW: decay first, then the moments, then the step.
#include <cmath>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

HEADRACE_KERNEL void Update(float* __restrict w, const float* __restrict g, float* __restrict m,
                            float* __restrict v, int64_t begin, int64_t end,
                            const AdamWStep& step) {
  const float beta1 = static_cast<float>(step.beta1), rest1 = static_cast<float>(1.0 - step.beta1);
  const float beta2 = static_cast<float>(step.beta2), rest2 = static_cast<float>(1.0 - step.beta2);
  const float epsilon = step.epsilon;
  const float decay = static_cast<float>(1.0 - static_cast<double>(step.learning_rate) *
                                                   static_cast<double>(step.weight_decay));
  const float rate = step.learning_rate / step.bias_correction1;
  const float inverse_root = 1.0f / std::sqrt(step.bias_correction2);
  const float scale = step.gradient_scale;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float gradient = g[i] * scale;
    const float first = beta1 * m[i] + rest1 * gradient;
    const float second = beta2 * v[i] + rest2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    w[i] = w[i] * decay - rate * first / (std::sqrt(second) * inverse_root + epsilon);
  }
}

}  // namespace

void CpuOps::AdamW(std::span<const UpdatedTensor> tensors, const AdamWStep& step) {
  for (const UpdatedTensor& t : tensors) {
    ParallelRanges(threads_, t.count, kElementGrain, [&](int64_t begin, int64_t end) {
      Update(t.w, t.g, t.state, t.state2, begin, end, step);
    });
  }
}

}  // namespace headrace
