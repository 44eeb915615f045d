#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/exp.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

HEADRACE_KERNEL void Forward(const float* gate_up, float* y, int64_t begin, int64_t end,
                             int64_t width) {
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = gate_up + 2 * t * width;
    const float* up = gate + width;
    float* out = y + t * width;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) out[j] = gate[j] / (1.0f + Exp(-gate[j])) * up[j];
  }
}

// silu(g) = g·s, silu'(g) = s·(1 + g·(1 − s)); 1 − s = e·s with e = exp(−g).
HEADRACE_KERNEL void Backward(const float* dy, const float* gate_up, float* dgate_up, int64_t begin,
                              int64_t end, int64_t width) {
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = gate_up + 2 * t * width;
    const float* up = gate + width;
    const float* d = dy + t * width;
    float* dgate = dgate_up + 2 * t * width;
    float* dup = dgate + width;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const float g = gate[j], u = up[j];
      const float e = Exp(-g);
      const float s = 1.0f / (1.0f + e);
      dgate[j] = d[j] * u * (s * (1.0f + g * (e * s)));
      dup[j] = d[j] * (g * s);
    }
  }
}

}  // namespace

void CpuOps::SwiGlu(ConstAct gate_up, Act y, int64_t n, int64_t width) {
  ParallelRanges(threads_, n, 1, [&](int64_t begin, int64_t end) {
    Forward(gate_up.f32(), y.f32(), begin, end, width);
  });
}

void CpuOps::SwiGluBackward(ConstAct dy, ConstAct gate_up, Act dgate_up, int64_t n, int64_t width) {
  ParallelRanges(threads_, n, 1, [&](int64_t begin, int64_t end) {
    Backward(dy.f32(), gate_up.f32(), dgate_up.f32(), begin, end, width);
  });
}

}  // namespace headrace
