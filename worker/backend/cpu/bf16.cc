#include "worker/backend/cpu/bf16.h"

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

HEADRACE_KERNEL void NarrowRange(const float* x, uint16_t* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    y[i] = ToBf16(x[i]);
  }
}

HEADRACE_KERNEL void WidenRange(const uint16_t* x, float* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    y[i] = FromBf16(x[i]);
  }
}

}  // namespace

void CpuOps::NarrowBf16(const float* x, uint16_t* y, int64_t count) {
  ParallelRanges(threads_, count, kElementGrain,
                 [&](int64_t begin, int64_t end) { NarrowRange(x, y, begin, end); });
}

void CpuOps::WidenBf16(const uint16_t* x, float* y, int64_t count) {
  ParallelRanges(threads_, count, kElementGrain,
                 [&](int64_t begin, int64_t end) { WidenRange(x, y, begin, end); });
}

}  // namespace headrace
