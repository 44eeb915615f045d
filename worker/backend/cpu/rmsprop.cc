// As torch.optim.RMSprop, not centred: epsilon is added outside the root.
#include <cmath>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

// `buffer` is null without momentum.
template <bool kMomentum>
HEADRACE_INLINE void UpdateRange(float* __restrict w, const float* __restrict g,
                                 float* __restrict square, float* __restrict buffer, int64_t begin,
                                 int64_t end, const RmsPropStep& step) {
  const float rate = step.learning_rate, decay = step.weight_decay, scale = step.gradient_scale;
  const float alpha = static_cast<float>(step.alpha), rest = static_cast<float>(1.0 - step.alpha);
  const float epsilon = step.epsilon, momentum = step.momentum;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float gradient = g[i] * scale + decay * w[i];
    const float mean = alpha * square[i] + rest * gradient * gradient;
    square[i] = mean;
    float change = gradient / (std::sqrt(mean) + epsilon);
    if constexpr (kMomentum) {
      change += momentum * buffer[i];
      buffer[i] = change;
    }
    w[i] -= rate * change;
  }
}

HEADRACE_KERNEL void Plain(float* w, const float* g, float* square, int64_t begin, int64_t end,
                           const RmsPropStep& step) {
  UpdateRange<false>(w, g, square, nullptr, begin, end, step);
}

HEADRACE_KERNEL void Momentum(float* w, const float* g, float* square, float* buffer, int64_t begin,
                              int64_t end, const RmsPropStep& step) {
  UpdateRange<true>(w, g, square, buffer, begin, end, step);
}

}  // namespace

void CpuOps::RmsProp(std::span<const UpdatedTensor> tensors, const RmsPropStep& step) {
  for (const UpdatedTensor& t : tensors) {
    ParallelRanges(threads_, t.count, kElementGrain, [&](int64_t begin, int64_t end) {
      if (step.momentum == 0.0f) {
        Plain(t.w, t.g, t.state, begin, end, step);
      } else {
        Momentum(t.w, t.g, t.state, t.state2, begin, end, step);
      }
    });
  }
}

}  // namespace headrace
