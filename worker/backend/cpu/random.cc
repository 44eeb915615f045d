#include "worker/backend/cpu/random.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

constexpr int64_t kGroup = 8;  // blocks computed side by side

void GroupOneByOne(const RandomStream& stream, uint32_t first, uint32_t* out) {
  for (uint32_t l = 0; l < kGroup; ++l) {
    const PhiloxBlock block = stream.Block(first + l);
    std::copy(block.begin(), block.end(), out + 4 * l);
  }
}

#if defined(__x86_64__)
#define HEADRACE_AVX2 __attribute__((target("avx2")))

// Four blocks, one a 64-bit lane: the multiplication reads the lower half of a lane and leaves the
// product in both, so the halves need not be parted between rounds.
struct FourBlocks {
  __m256i c0, c1, c2, c3;
};

HEADRACE_AVX2 inline void Round(FourBlocks& c, __m256i m0, __m256i m1, __m256i k0, __m256i k1) {
  const __m256i a = _mm256_mul_epu32(c.c0, m0);
  const __m256i b = _mm256_mul_epu32(c.c2, m1);
  c.c0 = _mm256_xor_si256(_mm256_srli_epi64(b, 32), _mm256_xor_si256(c.c1, k0));
  c.c1 = b;
  c.c2 = _mm256_xor_si256(_mm256_srli_epi64(a, 32), _mm256_xor_si256(c.c3, k1));
  c.c3 = a;
}

HEADRACE_AVX2 inline void Store(const FourBlocks& c, uint32_t* out) {
  const __m256i low = _mm256_blend_epi32(c.c0, _mm256_slli_epi64(c.c1, 32), 0xaa);
  const __m256i high = _mm256_blend_epi32(c.c2, _mm256_slli_epi64(c.c3, 32), 0xaa);
  const __m256i even = _mm256_unpacklo_epi64(low, high);  // blocks 0 and 2
  const __m256i odd = _mm256_unpackhi_epi64(low, high);   // blocks 1 and 3
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

HEADRACE_AVX2 void GroupAvx2(const RandomStream& stream, uint32_t first, uint32_t* out) {
  const __m256i c1 = _mm256_set1_epi64x(stream.c1), c2 = _mm256_set1_epi64x(stream.c2);
  const __m256i c3 = _mm256_set1_epi64x(stream.c3);
  FourBlocks a{_mm256_set_epi64x(first + 3u, first + 2u, first + 1u, first), c1, c2, c3};
  FourBlocks b{_mm256_set_epi64x(first + 7u, first + 6u, first + 5u, first + 4u), c1, c2, c3};
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  uint32_t k0 = stream.key[0], k1 = stream.key[1];
  for (int round = 0; round < 10; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
    Round(a, m0, m1, key0, key1);
    Round(b, m0, m1, key0, key1);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  Store(a, out);
  Store(b, out + 16);
}
#endif

using GroupFunction = void (*)(const RandomStream&, uint32_t, uint32_t*);

GroupFunction ChooseGroup() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return GroupAvx2;
#endif
  return GroupOneByOne;
}

}  // namespace

void RandomBlocks(const RandomStream& stream, uint64_t first, int64_t num, uint32_t* out) {
  static const GroupFunction group = ChooseGroup();
  while (num > 0) {
    RandomStream page = stream;
    page.key[1] ^= static_cast<uint32_t>(first >> 32);
    const int64_t left_in_page = (int64_t{1} << 32) - static_cast<int64_t>(first & 0xffffffffu);
    const int64_t count = std::min({num, left_in_page, kGroup});
    if (count == kGroup) {
      group(page, static_cast<uint32_t>(first), out);
    } else {
      uint32_t blocks[4 * kGroup];
      group(page, static_cast<uint32_t>(first), blocks);
      std::copy(blocks, blocks + 4 * count, out);
    }
    first += static_cast<uint64_t>(count);
    num -= count;
    out += 4 * count;
  }
}

}  // namespace headrace
