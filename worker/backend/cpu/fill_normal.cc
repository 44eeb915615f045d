#include <algorithm>
#include <cmath>
#include <numbers>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/random.h"

namespace headrace {
namespace {

// Box–Muller in double: two uniform numbers in (0, 1) give two normal ones.
void NormalPair(uint32_t a, uint32_t b, double std, float* pair) {
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-32;
  const double v = (static_cast<double>(b) + 0.5) * 0x1p-32;
  const double radius = std * std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * v;
  pair[0] = static_cast<float>(radius * std::cos(angle));
  pair[1] = static_cast<float>(radius * std::sin(angle));
}

}  // namespace

// Elements 4b … 4b + 3 come from block b.
void CpuOps::FillNormal(float* x, int64_t count, float std, const RandomStream& stream) {
  ParallelRanges(threads_, count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 4) {
      uint32_t random[4];
      RandomBlocks(stream, static_cast<uint64_t>(i / 4), 1, random);
      float normal[4];
      NormalPair(random[0], random[1], std, normal);
      NormalPair(random[2], random[3], std, normal + 2);
      std::copy(normal, normal + std::min<int64_t>(4, end - i), x + i);
    }
  });
}

}  // namespace headrace
