#include "worker/backend/cpu/random.h"

#include <algorithm>

#include "worker/backend/cpu/kernel.h"

namespace headrace {
namespace {

constexpr int64_t kGroup = 16;  // blocks computed side by side

HEADRACE_KERNEL void Group(const RandomStream& stream, uint32_t first, uint32_t* out) {
  const uint32_t k0 = stream.key[0], k1 = stream.key[1];
  const uint32_t s1 = stream.c1, s2 = stream.c2, s3 = stream.c3;
#pragma omp simd
  for (int64_t l = 0; l < kGroup; ++l) {
    uint32_t c0 = first + static_cast<uint32_t>(l), c1 = s1, c2 = s2, c3 = s3;
    for (uint32_t round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t{0xD2511F53} * c0;
      const uint64_t b = uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ (k0 + round * 0x9E3779B9u);
      c1 = static_cast<uint32_t>(b);
      c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ (k1 + round * 0xBB67AE85u);
      c3 = static_cast<uint32_t>(a);
    }
    out[4 * l] = c0;
    out[4 * l + 1] = c1;
    out[4 * l + 2] = c2;
    out[4 * l + 3] = c3;
  }
}

}  // namespace

void RandomBlocks(const RandomStream& stream, uint64_t first, int64_t num, uint32_t* out) {
  while (num > 0) {
    RandomStream page = stream;
    page.key[1] ^= static_cast<uint32_t>(first >> 32);
    const int64_t left_in_page = (int64_t{1} << 32) - static_cast<int64_t>(first & 0xffffffffu);
    const int64_t count = std::min({num, left_in_page, kGroup});
    if (count == kGroup) {
      Group(page, static_cast<uint32_t>(first), out);
    } else {
      uint32_t blocks[4 * kGroup];
      Group(page, static_cast<uint32_t>(first), blocks);
      std::copy(blocks, blocks + 4 * count, out);
    }
    first += static_cast<uint64_t>(count);
    num -= count;
    out += 4 * count;
  }
}

}  // namespace headrace
