#include <cmath>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

// Rotates the pairs (i, i + size/2) of every query and key head; sign −1 rotates back.
HEADRACE_KERNEL void Rotate(float* qkv, const float* cos, const float* sin, float sign,
                            int64_t begin, int64_t end, int64_t length, int64_t rotated,
                            int64_t stride, int64_t size) {
  const int64_t half = size / 2;
  for (int64_t t = begin; t < end; ++t) {
    const float* c = cos + t % length * half;
    const float* s = sin + t % length * half;
    for (int64_t head = 0; head < rotated; ++head) {
      float* low = qkv + t * stride + head * size;
      float* high = low + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = low[i], b = high[i], si = sign * s[i];
        low[i] = a * c[i] - b * si;
        high[i] = b * c[i] + a * si;
      }
    }
  }
}

}  // namespace

void CpuOps::RopeTable(float* cos, float* sin, int64_t length, int64_t size, double theta) {
  const int64_t half = size / 2;
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double frequency =
          std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(size));
      const double angle = static_cast<double>(t) * frequency;
      cos[t * half + i] = static_cast<float>(std::cos(angle));
      sin[t * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void CpuOps::Rope(Act qkv, const float* cos, const float* sin, const AttentionShape& shape,
                  bool inverse) {
  const int64_t stride = (shape.heads + 2 * shape.kv_heads) * shape.size;
  ParallelRanges(threads_, shape.sequences * shape.length, 1, [&](int64_t begin, int64_t end) {
    Rotate(qkv.f32(), cos, sin, inverse ? -1.0f : 1.0f, begin, end, shape.length,
           shape.heads + shape.kv_heads, stride, shape.size);
  });
}

}  // namespace headrace
