#include <algorithm>
#include <array>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/reduce.h"

namespace headrace {
namespace {

constexpr int64_t kBlock = 1 << 16;  // elements of one partial sum
constexpr int64_t kBlocks = 64;      // partial sums at a time

HEADRACE_KERNEL double BlockSum(const float* x, int64_t count) {
  return SumOf<double>(count, [=](int64_t j) HEADRACE_INLINE_LAMBDA {
    return static_cast<double>(x[j]) * static_cast<double>(x[j]);
  });
}

double SquaredNormOf(int threads, const float* x, int64_t count) {
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  std::array<double, kBlocks> sums;
  double sum = 0;
  for (int64_t first = 0; first < blocks; first += kBlocks) {
    const int64_t some = std::min(kBlocks, blocks - first);
    ParallelRanges(threads, some, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t at = (first + block) * kBlock;
        sums[block] = BlockSum(x + at, std::min(kBlock, count - at));
      }
    });
    for (int64_t block = 0; block < some; ++block) sum += sums[block];
  }
  return sum;
}

}  // namespace

void CpuOps::SquaredNorms(std::span<const std::span<const float>> tensors, double* sums) {
  for (const std::span<const float>& x : tensors) {
    *sums++ = SquaredNormOf(threads_, x.data(), static_cast<int64_t>(x.size()));
  }
}

}  // namespace headrace
