#include <algorithm>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/random.h"

namespace headrace {
namespace {

constexpr int64_t kChunk = 1024;  // elements masked at a time

HEADRACE_KERNEL void MaskChunk(const float* x, float* y, const uint32_t* random, int64_t count,
                               uint32_t threshold, float keep) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    y[i] = x[i] * ((random[i] >> 8) < threshold ? 0.0f : keep);
  }
}

}  // namespace

// Element i takes number i mod 4 of block i / 4.
void CpuOps::Dropout(ConstAct x, Act y, int64_t count, float p, const RandomStream& mask) {
  const uint32_t threshold = DropThreshold(p);
  const float keep = 1.0f / (1.0f - p);
  ParallelRanges(threads_, count, kElementGrain, [&](int64_t begin, int64_t end) {
    uint32_t random[kChunk];
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t chunk = std::min(kChunk, end - i);
      RandomBlocks(mask, static_cast<uint64_t>(i / 4), (chunk + 3) / 4, random);
      MaskChunk(x.f32() + i, y.f32() + i, random, chunk, threshold, keep);
    }
  });
}

}  // namespace headrace
