// Sums with a written order: element i goes to lane i mod 32, then the lanes are added as a tree.
// The order depends on the length alone, never on addresses, the instruction set or threads.
#pragma once

#include <cstdint>
#include <limits>

#include "worker/backend/cpu/kernel.h"

namespace headrace {

inline constexpr int kLanes = 32;

// Adds the upper half to the lower until one is left. Destroys `lane`.
template <typename T>
HEADRACE_INLINE T SumTree(T* lane) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

// Σ term(i) for i in [0, n), in T.
template <typename T, typename Term>
HEADRACE_INLINE T SumOf(int64_t n, const Term& term) {
  T lane[kLanes] = {};
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) lane[l] += term(i + l);
  }
  for (int64_t i = whole; i < n; ++i) lane[i - whole] += term(i);
  return SumTree(lane);
}

// The largest of x[0, n); NaN is passed over, n = 0 gives −inf.
HEADRACE_INLINE float MaxOf(const float* x, int64_t n) {
  float lane[kLanes];
  for (int l = 0; l < kLanes; ++l) lane[l] = -std::numeric_limits<float>::infinity();
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  }
  for (int64_t i = whole; i < n; ++i) {
    lane[i - whole] = x[i] > lane[i - whole] ? x[i] : lane[i - whole];
  }
  float max = lane[0];
  for (int l = 1; l < kLanes; ++l) max = lane[l] > max ? lane[l] : max;
  return max;
}

}  // namespace headrace
