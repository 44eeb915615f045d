#include <algorithm>
#include <vector>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/reduce.h"

namespace headrace {
namespace {

constexpr int64_t kBlock = 1 << 16;  // elements of one partial sum

HEADRACE_KERNEL double BlockSum(const float* x, int64_t count) {
  return SumOf<double>(count, [=](int64_t j) HEADRACE_INLINE_LAMBDA {
    return static_cast<double>(x[j]) * static_cast<double>(x[j]);
  });
}

}  // namespace

double CpuOps::SquaredNorm(const float* x, int64_t count) {
  std::vector<double> sums(static_cast<size_t>((count + kBlock - 1) / kBlock));
  ParallelRanges(threads_, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * kBlock;
      sums[static_cast<size_t>(block)] = BlockSum(x + at, std::min(kBlock, count - at));
    }
  });
  double sum = 0;
  for (double partial : sums) sum += partial;
  return sum;
}

}  // namespace headrace
