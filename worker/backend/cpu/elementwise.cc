#include <algorithm>
#include <cstring>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

HEADRACE_KERNEL void AddRange(const float* a, const float* b, float* y, int64_t begin,
                              int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
}

}  // namespace

void CpuOps::Add(ConstAct a, ConstAct b, Act y, int64_t count) {
  ParallelRanges(threads_, count, kElementGrain, [&](int64_t begin, int64_t end) {
    AddRange(a.f32(), b.f32(), y.f32(), begin, end);
  });
}

void CpuOps::Fill(float* x, int64_t count, float value) {
  ParallelRanges(threads_, count, kElementGrain,
                 [&](int64_t begin, int64_t end) { std::fill(x + begin, x + end, value); });
}

// memset passes the caches by where a range is larger than they are: no line is read to be written.
void CpuOps::Zero(float* x, int64_t count) {
  ParallelRanges(threads_, count, kElementGrain, [&](int64_t begin, int64_t end) {
    std::memset(x + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
  });
}

void CpuOps::Copy(const float* x, float* y, int64_t count) {
  std::memcpy(y, x, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace headrace
