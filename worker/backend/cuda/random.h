// common/philox.h on the device: the same numbers for the same stream and position.
#pragma once

#include <cstdint>

#include "common/philox.h"
#include "worker/backend/cuda/launch.h"

namespace headrace::cuda {

// A RandomStream as a kernel takes it.
struct Stream {
  uint32_t key[2];
  uint32_t c1, c2, c3;
};
inline Stream DeviceStream(const RandomStream& s) {
  return {{s.key[0], s.key[1]}, s.c1, s.c2, s.c3};
}

struct Block {
  uint32_t at[4];
};

// Block `index` of the stream; beyond 2^32 the key's second word differs by the upper half, as in
// worker/backend/cpu/random.h.
__device__ inline Block RandomBlock(const Stream& stream, uint64_t index) {
  uint32_t k0 = stream.key[0], k1 = stream.key[1] ^ static_cast<uint32_t>(index >> 32);
  uint32_t c0 = static_cast<uint32_t>(index), c1 = stream.c1, c2 = stream.c2, c3 = stream.c3;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
    const uint32_t low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Numbers whose upper 24 bits are below this are dropped: exactly where UniformFloat(number) < p.
inline uint32_t DropThreshold(float p) {
  const double exact = static_cast<double>(p) * 16777216.0;
  const auto whole = static_cast<uint32_t>(exact);
  return static_cast<double>(whole) < exact ? whole + 1 : whole;
}

}  // namespace headrace::cuda
