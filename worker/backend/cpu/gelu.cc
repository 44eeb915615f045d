#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/exp.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

// gelu(x) = x/2 · (1 + tanh(u)) = x · sigmoid(2u), u = √(2/π) · (x + 0.044715 x³).
constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

// Beyond ±9.9 the sigmoid is 0 or 1 to the last bit that counts, and exp would leave its range.
HEADRACE_INLINE float Clamp(float x) {
  x = x < -9.9f ? -9.9f : x;
  return x > 9.9f ? 9.9f : x;
}

HEADRACE_KERNEL void Forward(const float* x, float* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float c = Clamp(x[i]);
    const float e = ExpInRange(c * (-kTwoRootTwoOverPi - kTwoRootTwoOverPi * kCubic * (c * c)));
    y[i] = x[i] / (1.0f + e);
  }
}

HEADRACE_KERNEL void Backward(const float* dy, const float* x, float* dx, int64_t begin,
                              int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float c = Clamp(x[i]);
    const float square = c * c;
    const float e = ExpInRange(c * (-kTwoRootTwoOverPi - kTwoRootTwoOverPi * kCubic * square));
    const float s = 1.0f / (1.0f + e);
    const float slope = kTwoRootTwoOverPi + 3.0f * kTwoRootTwoOverPi * kCubic * square;  // of 2u
    dx[i] = dy[i] * (s + (c * slope) * s * (e * s));  // e * s = 1 − s without cancellation
  }
}

}  // namespace

void CpuOps::Gelu(ConstAct x, Act y, int64_t count) {
  ParallelRanges(threads_, count, kElementGrain,
                 [&](int64_t begin, int64_t end) { Forward(x.f32(), y.f32(), begin, end); });
}

void CpuOps::GeluBackward(ConstAct dy, ConstAct x, Act dx, int64_t count) {
  ParallelRanges(threads_, count, kElementGrain, [&](int64_t begin, int64_t end) {
    Backward(dy.f32(), x.f32(), dx.f32(), begin, end);
  });
}

}  // namespace headrace
