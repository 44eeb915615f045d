#include <cmath>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/reduce.h"

namespace headrace {
namespace {

HEADRACE_KERNEL void Forward(const float* x, const float* gain, const float* bias, float* y,
                             float* mean, float* rstd, int64_t begin, int64_t end, int64_t width,
                             float epsilon) {
  const float inverse = 1.0f / static_cast<float>(width);
  for (int64_t t = begin; t < end; ++t) {
    const float* in = x + t * width;
    float* out = y + t * width;
    const float m =
        inverse * SumOf<float>(width, [=](int64_t j) HEADRACE_INLINE_LAMBDA { return in[j]; });
    const float variance = inverse * SumOf<float>(width, [=](int64_t j) HEADRACE_INLINE_LAMBDA {
                             return (in[j] - m) * (in[j] - m);
                           });
    const float r = 1.0f / std::sqrt(variance + epsilon);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) out[j] = (in[j] - m) * r * gain[j] + bias[j];
    mean[t] = m;
    rstd[t] = r;
  }
}

// With h = dy * gain and x̂ = (x − mean) * rstd: dx = rstd * (h − mean(h) − x̂ * mean(h * x̂)).
template <bool kAccumulate>
HEADRACE_INLINE void InputRow(const float* dy, const float* x, const float* gain, float m, float r,
                              float* dx, int64_t width) {
  const float inverse = 1.0f / static_cast<float>(width);
  const float a = inverse * SumOf<float>(width, [=](int64_t j) HEADRACE_INLINE_LAMBDA {
                    return dy[j] * gain[j];
                  });
  const float b = inverse * r * SumOf<float>(width, [=](int64_t j) HEADRACE_INLINE_LAMBDA {
                    return dy[j] * gain[j] * (x[j] - m);
                  });
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) {
    const float d = r * (dy[j] * gain[j] - a - (x[j] - m) * r * b);
    dx[j] = kAccumulate ? dx[j] + d : d;
  }
}

HEADRACE_KERNEL void BackwardInput(const float* dy, const float* x, const float* gain,
                                   const float* mean, const float* rstd, float* dx, int64_t begin,
                                   int64_t end, int64_t width, bool accumulate) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t at = t * width;
    if (accumulate) {
      InputRow<true>(dy + at, x + at, gain, mean[t], rstd[t], dx + at, width);
    } else {
      InputRow<false>(dy + at, x + at, gain, mean[t], rstd[t], dx + at, width);
    }
  }
}

// Columns [begin, end) of rows [from, to), rows ascending.
HEADRACE_KERNEL void BackwardParameters(const float* dy, const float* x, const float* mean,
                                        const float* rstd, float* dgain, float* dbias, int64_t from,
                                        int64_t to, int64_t width, int64_t begin, int64_t end) {
  for (int64_t t = from; t < to; ++t) {
    const float* g = dy + t * width;
    const float* in = x + t * width;
    const float m = mean[t], r = rstd[t];
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) {
      dgain[j] += g[j] * ((in[j] - m) * r);
      dbias[j] += g[j];
    }
  }
}

}  // namespace

void CpuOps::LayerNorm(ConstAct x, const float* gain, const float* bias, Act y, float* mean,
                       float* rstd, int64_t n, int64_t width, float epsilon) {
  ParallelRanges(threads_, n, 1, [&](int64_t begin, int64_t end) {
    Forward(x.f32(), gain, bias, y.f32(), mean, rstd, begin, end, width, epsilon);
  });
}

void CpuOps::LayerNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* mean,
                               const float* rstd, ConstAct residual, Act dx, float* dgain,
                               float* dbias, int64_t n, int64_t width) {
  // Parameters first: dx may be dy.
  ParallelRanges(threads_, width, 64, [&](int64_t begin, int64_t end) {
    BackwardParameters(dy.f32(), x.f32(), mean, rstd, dgain, dbias, 0, n, width, begin, end);
  });
  const bool accumulate = residual == dx;
  ParallelRanges(threads_, n, 1, [&](int64_t begin, int64_t end) {
    BackwardInput(dy.f32(), x.f32(), gain, mean, rstd, dx.f32(), begin, end, width, accumulate);
  });
  if (residual != nullptr && !accumulate) Add(residual, dx, dx, n * width);
}

}  // namespace headrace
