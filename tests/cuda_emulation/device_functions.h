// CUDA's device functions, as far as Headrace's kernels use them. Included by emulation.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "tests/cuda_emulation/grid.h"
#include "tests/cuda_emulation/warp_ops.h"

// The caller's place, for reports.
#define HEADRACE_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(HEADRACE_CALLER) {
  headrace::emulation::BlockBarrier({"__syncthreads", file, line});
}
inline void __syncwarp(unsigned mask = ~0u, HEADRACE_CALLER) {
  headrace::emulation::SyncWarp(mask, {"__syncwarp", file, line});
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, HEADRACE_CALLER) {
  const int lane = static_cast<int>(headrace::emulation::Lane());
  const int from = (lane & ~(width - 1)) + (source & (width - 1));
  return headrace::emulation::Shuffle(mask, value, from, {"__shfl_sync", file, line});
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, HEADRACE_CALLER) {
  const int lane = static_cast<int>(headrace::emulation::Lane()), from = lane ^ bits;
  const bool inside = from < (lane & ~(width - 1)) + width;
  return headrace::emulation::Shuffle(mask, value, inside ? from : lane,
                                      {"__shfl_xor_sync", file, line});
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32, HEADRACE_CALLER) {
  const int lane = static_cast<int>(headrace::emulation::Lane()), from = lane + delta;
  const bool inside = from < (lane & ~(width - 1)) + width;
  return headrace::emulation::Shuffle(mask, value, inside ? from : lane,
                                      {"__shfl_down_sync", file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, HEADRACE_CALLER) {
  return headrace::emulation::Ballot(mask, predicate != 0, {"__ballot_sync", file, line});
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
template <typename A, typename B>
auto min(A a, B b) {
  using Common = std::common_type_t<A, B>;
  return static_cast<Common>(a) < static_cast<Common>(b) ? static_cast<Common>(a)
                                                         : static_cast<Common>(b);
}
template <typename A, typename B>
auto max(A a, B b) {
  using Common = std::common_type_t<A, B>;
  return static_cast<Common>(a) < static_cast<Common>(b) ? static_cast<Common>(b)
                                                         : static_cast<Common>(a);
}
