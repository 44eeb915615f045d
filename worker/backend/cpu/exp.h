// exp in a form that vectorises when inlined into a loop: relative error below 2e-7.
#pragma once

#include <bit>
#include <cstdint>

#include "worker/backend/cpu/kernel.h"

namespace headrace {

// exp(x) for −87 ≤ x ≤ 88 or NaN; beyond, nonsense.
//
// x = n·ln2 + r with |r| ≤ ln2/2; exp(r) by Cephes' polynomial; 2^n goes into the exponent bits.
// Adding 1.5·2^23 rounds x·log2(e) to the integer n and leaves it in the low bits. The polynomial
// is evaluated by halves: its latency, not its work, is what a loop waits for.
HEADRACE_INLINE float ExpInRange(float x) {
  constexpr float kRound = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  const float square = r * r;
  const float high = 1.9875691500e-4f * r + 1.3981999507e-3f;
  const float middle = 8.3334519073e-3f * r + 4.1665795894e-2f;
  const float low = 1.6666665459e-1f * r + 5.0000001201e-1f;
  const float y = ((high * square + middle) * square + low) * square + (r + 1.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) +
                              (std::bit_cast<uint32_t>(shifted) << 23));
}

// exp(x) for x ≤ 88, as softmax has it: at least exp(−87), never 0. NaN gives NaN.
HEADRACE_INLINE float ExpFromBelow(float x) { return ExpInRange(x < -87.0f ? -87.0f : x); }

// exp(x) for x clamped to [−87, 88]: never 0, never infinite. NaN gives NaN.
HEADRACE_INLINE float Exp(float x) { return ExpFromBelow(x > 88.0f ? 88.0f : x); }

}  // namespace headrace
