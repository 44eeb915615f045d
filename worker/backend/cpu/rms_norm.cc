#include <cmath>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/reduce.h"

namespace headrace {
namespace {

HEADRACE_KERNEL void Forward(const float* x, const float* gain, float* y, float* rstd,
                             int64_t begin, int64_t end, int64_t width, float epsilon) {
  const float inverse = 1.0f / static_cast<float>(width);
  for (int64_t t = begin; t < end; ++t) {
    const float* in = x + t * width;
    float* out = y + t * width;
    const float square = inverse * SumOf<float>(width, [=](int64_t j) HEADRACE_INLINE_LAMBDA {
                           return in[j] * in[j];
                         });
    const float r = 1.0f / std::sqrt(square + epsilon);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) out[j] = in[j] * r * gain[j];
    rstd[t] = r;
  }
}

// With h = dy * gain and x̂ = x * rstd: dx = rstd * (h − x̂ * mean(h * x̂)).
template <bool kAccumulate>
HEADRACE_INLINE void InputRow(const float* dy, const float* x, const float* gain, float r,
                              float* dx, int64_t width) {
  const float inverse = 1.0f / static_cast<float>(width);
  const float b = inverse * r * SumOf<float>(width, [=](int64_t j) HEADRACE_INLINE_LAMBDA {
                    return dy[j] * gain[j] * x[j];
                  });
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) {
    const float d = r * (dy[j] * gain[j] - x[j] * r * b);
    dx[j] = kAccumulate ? dx[j] + d : d;
  }
}

HEADRACE_KERNEL void BackwardInput(const float* dy, const float* x, const float* gain,
                                   const float* rstd, float* dx, int64_t begin, int64_t end,
                                   int64_t width, bool accumulate) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t at = t * width;
    if (accumulate) {
      InputRow<true>(dy + at, x + at, gain, rstd[t], dx + at, width);
    } else {
      InputRow<false>(dy + at, x + at, gain, rstd[t], dx + at, width);
    }
  }
}

// Columns [begin, end) of every row, rows ascending.
HEADRACE_KERNEL void BackwardGain(const float* dy, const float* x, const float* rstd, float* dgain,
                                  int64_t n, int64_t width, int64_t begin, int64_t end) {
  for (int64_t t = 0; t < n; ++t) {
    const float* g = dy + t * width;
    const float* in = x + t * width;
    const float r = rstd[t];
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) dgain[j] += g[j] * (in[j] * r);
  }
}

}  // namespace

void CpuOps::RmsNorm(ConstAct x, const float* gain, Act y, float* rstd, int64_t n, int64_t width,
                     float epsilon) {
  ParallelRanges(threads_, n, 1, [&](int64_t begin, int64_t end) {
    Forward(x.f32(), gain, y.f32(), rstd, begin, end, width, epsilon);
  });
}

void CpuOps::RmsNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* rstd,
                             ConstAct residual, Act dx, float* dgain, int64_t n, int64_t width) {
  // The gain first: dx may be dy.
  ParallelRanges(threads_, width, 64, [&](int64_t begin, int64_t end) {
    BackwardGain(dy.f32(), x.f32(), rstd, dgain, n, width, begin, end);
  });
  const bool accumulate = residual == dx;
  ParallelRanges(threads_, n, 1, [&](int64_t begin, int64_t end) {
    BackwardInput(dy.f32(), x.f32(), gain, rstd, dx.f32(), begin, end, width, accumulate);
  });
  if (residual != nullptr && !accumulate) Add(residual, dx, dx, n * width);
}

}  // namespace headrace
