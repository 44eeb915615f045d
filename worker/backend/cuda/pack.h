// Numbers 16 bytes at a time, whatever their type: every kernel reads and writes device memory so.
//
// Which element a thread takes depends on shapes alone; a pointer that is no multiple of 16 bytes,
// or the end of a row, is read element by element into the same places. So the order of every sum,
// and with it every bit, is the same for any address.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/launch.h"

namespace headrace::cuda {

using Bf16 = __nv_bfloat16;

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(Bf16 x) { return __bfloat162float(x); }
template <typename T>
__device__ inline T FromFloat(float x) {
  if constexpr (sizeof(T) == 2) {
    return __float2bfloat16(x);  // to nearest, ties to even
  } else {
    return x;
  }
}

// Elements of one access.
template <typename T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <typename T>
struct alignas(16) Pack {
  T at[kPack<T>];
};

// Elements p[0, left) of a pack; what lies beyond is 0.
template <typename T>
__device__ inline Pack<T> Load(const T* p, int64_t left) {
  if (left >= kPack<T> && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
    return *reinterpret_cast<const Pack<T>*>(p);
  }
  Pack<T> pack;
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) pack.at[k] = k < left ? p[k] : FromFloat<T>(0.0f);
  return pack;
}

template <typename T>
__device__ inline void Store(T* p, int64_t left, const Pack<T>& pack) {
  if (left >= kPack<T> && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
    *reinterpret_cast<Pack<T>*>(p) = pack;
    return;
  }
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) {
    if (k < left) p[k] = pack.at[k];
  }
}

// As many fp32 numbers as a pack of T has elements: gains, biases, gradients.
template <typename T>
struct Floats {
  float at[kPack<T>];
};
template <typename T>
__device__ inline Floats<T> LoadFloats(const float* p, int64_t left) {
  Floats<T> floats;
#pragma unroll
  for (int k = 0; k < kPack<T>; k += 4) {
    const Pack<float> pack = Load(p + k, left - k);
#pragma unroll
    for (int j = 0; j < 4; ++j) floats.at[k + j] = pack.at[j];
  }
  return floats;
}
template <typename T>
__device__ inline void StoreFloats(float* p, int64_t left, const Floats<T>& floats) {
#pragma unroll
  for (int k = 0; k < kPack<T>; k += 4) {
    Pack<float> pack;
#pragma unroll
    for (int j = 0; j < 4; ++j) pack.at[j] = floats.at[k + j];
    Store(p + k, left - k, pack);
  }
}

inline constexpr int kThreads = 256;  // of a block of a kernel over elements
inline constexpr int64_t kMostBlocks = 4096;

// Blocks for `items` threads' worth of work; each thread strides over what is left.
inline unsigned BlocksFor(int64_t items) {
  const int64_t blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}
__device__ inline int64_t GlobalThread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t AllThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace headrace::cuda
