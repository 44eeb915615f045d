// One number to bfloat16, the upper half of a float, and back.
#pragma once

#include <bit>
#include <cstdint>

#include "worker/backend/cpu/kernel.h"

namespace headrace {

// To nearest, ties to even; NaN stays NaN, with its quiet bit set.
HEADRACE_INLINE uint16_t ToBf16(float x) {
  constexpr uint32_t kInfinity = 0x7f800000, kSign = 0x80000000, kQuiet = 0x00400000;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const bool nan = (bits & ~kSign) > kInfinity;  // rounding up could carry into an infinity
  return static_cast<uint16_t>((nan ? bits | kQuiet : rounded) >> 16);
}

HEADRACE_INLINE float FromBf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

}  // namespace headrace
