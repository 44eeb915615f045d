#include <algorithm>
#include <array>
#include <cmath>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/exp.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/reduce.h"

namespace headrace {
namespace {

// Exponentials are summed in fp32 within a block, the blocks in fp64: a vocabulary of 10^5 costs no
// more rounding than one block.
constexpr int64_t kBlock = 1024;

// Σ exp(x − max).
HEADRACE_INLINE double ExpSum(const float* x, int64_t n, float max) {
  double sum = 0;
  for (int64_t at = 0; at < n; at += kBlock) {
    const float* block = x + at;
    sum += SumOf<float>(std::min(kBlock, n - at), [=](int64_t j) HEADRACE_INLINE_LAMBDA {
      return ExpFromBelow(block[j] - max);
    });
  }
  return sum;
}

HEADRACE_KERNEL double LossRow(const float* x, int32_t target, int64_t vocabulary) {
  const float max = MaxOf(x, vocabulary);
  const double sum = ExpSum(x, vocabulary, max);
  return std::log(sum) + (static_cast<double>(max) - static_cast<double>(x[target]));
}

HEADRACE_KERNEL double GradientRow(float* x, int32_t target, int64_t vocabulary, float scale) {
  const float max = MaxOf(x, vocabulary);
  const double below = static_cast<double>(max) - static_cast<double>(x[target]);
  double sum = 0;
  for (int64_t at = 0; at < vocabulary; at += kBlock) {
    float* block = x + at;
    const int64_t count = std::min(kBlock, vocabulary - at);
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) block[j] = ExpFromBelow(block[j] - max);
    sum += SumOf<float>(count, [=](int64_t j) HEADRACE_INLINE_LAMBDA { return block[j]; });
  }
  const float factor = static_cast<float>(static_cast<double>(scale) / sum);
#pragma omp simd
  for (int64_t j = 0; j < vocabulary; ++j) x[j] *= factor;
  x[target] -= scale;
  return std::log(sum) + below;
}

// Σ loss_of(row) for rows [0, n), added in ascending order whatever thread took a row.
template <typename LossOf>
double SumRows(int threads, int64_t n, const LossOf& loss_of) {
  constexpr int64_t kRows = 256;
  std::array<double, kRows> losses;
  double sum = 0;
  for (int64_t first = 0; first < n; first += kRows) {
    const int64_t rows = std::min(kRows, n - first);
    ParallelRanges(threads, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) losses[t] = loss_of(first + t);
    });
    for (int64_t t = 0; t < rows; ++t) sum += losses[t];
  }
  return sum;
}

}  // namespace

void CpuOps::CrossEntropy(ConstAct logits, const int32_t* targets, double* loss, int64_t n,
                          int64_t vocabulary) {
  *loss += SumRows(threads_, n, [x = logits.f32(), targets, vocabulary](int64_t t) {
    return LossRow(x + t * vocabulary, targets[t], vocabulary);
  });
}

void CpuOps::CrossEntropyBackward(Act logits, const int32_t* targets, double* loss, int64_t n,
                                  int64_t vocabulary, float scale) {
  *loss += SumRows(threads_, n, [x = logits.f32(), targets, vocabulary, scale](int64_t t) {
    return GradientRow(x + t * vocabulary, targets[t], vocabulary, scale);
  });
}

}  // namespace headrace
