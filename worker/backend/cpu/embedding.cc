#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

HEADRACE_KERNEL void Forward(const int32_t* ids, const float* wte, const float* wpe, float* y,
                             int64_t begin, int64_t end, int64_t length, int64_t width) {
  for (int64_t t = begin; t < end; ++t) {
    const float* token = wte + ids[t] * width;
    float* row = y + t * width;
    if (wpe == nullptr) {
      std::copy(token, token + width, row);
      continue;
    }
    const float* position = wpe + t % length * width;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) row[j] = token[j] + position[j];
  }
}

// Columns [begin, end) of every row, rows ascending: two threads never meet in one gradient.
HEADRACE_KERNEL void Backward(const int32_t* ids, const float* dy, float* dwte, float* dwpe,
                              int64_t n, int64_t length, int64_t width, int64_t begin,
                              int64_t end) {
  for (int64_t t = 0; t < n; ++t) {
    const float* row = dy + t * width;
    float* token = dwte + ids[t] * width;
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) token[j] += row[j];
    if (dwpe == nullptr) continue;
    float* position = dwpe + t % length * width;
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) position[j] += row[j];
  }
}

}  // namespace

void CpuOps::Embedding(const int32_t* ids, const float* wte, const float* wpe, Act y, int64_t n,
                       int64_t length, int64_t width) {
  ParallelRanges(threads_, n, 1, [&](int64_t begin, int64_t end) {
    Forward(ids, wte, wpe, y.f32(), begin, end, length, width);
  });
}

void CpuOps::EmbeddingBackward(const int32_t* ids, ConstAct dy, float* dwte, float* dwpe, int64_t n,
                               int64_t length, int64_t width) {
  ParallelRanges(threads_, width, 64, [&](int64_t begin, int64_t end) {
    Backward(ids, dy.f32(), dwte, dwpe, n, length, width, begin, end);
  });
}

}  // namespace headrace
