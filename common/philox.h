// Philox4x32-10 (Salmon et al., SC'11): random numbers as a pure function of a key and a counter, so
// that weights, dropout masks and data order depend on (seed, step, micro-batch, layer) and on
// nothing else: not on K, the schedule, a recompute or a restart.
#pragma once

#include <array>
#include <cstdint>

namespace headrace {

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock Philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// What a stream of random numbers is for; streams of different purposes never overlap.
enum class RandomPurpose : uint32_t { kInit = 1, kDropout = 2, kData = 3, kGenerate = 4 };

// One stream: 2^32 blocks of four 32-bit numbers, keyed by everything but the position.
struct RandomStream {
  PhiloxKey key{};
  uint32_t c1 = 0, c2 = 0, c3 = 0;

  PhiloxBlock Block(uint32_t index) const { return Philox({index, c1, c2, c3}, key); }
};

// `seed` from the job; a, b, c name the stream within the purpose: for dropout (step, micro-batch,
// layer * 8 + site), for init (layer, parameter, 0), for data (step, sequence, 0).
inline RandomStream MakeStream(uint64_t seed, RandomPurpose purpose, uint32_t a, uint32_t b,
                               uint32_t c) {
  const uint32_t mixed = static_cast<uint32_t>(seed >> 32) ^ (static_cast<uint32_t>(purpose) << 24);
  return RandomStream{{static_cast<uint32_t>(seed), mixed}, a, b, c};
}

// Uniform in [0, 1), 24 bits.
inline float UniformFloat(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

}  // namespace headrace
