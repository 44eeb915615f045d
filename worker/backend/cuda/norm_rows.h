// What LayerNorm and RMSNorm share: a warp takes a row and goes over it pack by pack.
#pragma once

#include "worker/backend/cuda/pack.h"
#include "worker/backend/cuda/reduce.h"

namespace headrace::cuda {

inline constexpr int kRowsOfBlock = 4;  // warps of a block

inline unsigned BlocksForRows(int64_t n) {
  const int64_t blocks = (n + kRowsOfBlock - 1) / kRowsOfBlock;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

// Calls visit(column, columns left, …) for the packs of a row that are this lane's.
template <typename T, typename Visit>
__device__ inline void ForPacks(int64_t width, const Visit& visit) {
  for (int64_t j = threadIdx.x % 32 * kPack<T>; j < width; j += 32 * kPack<T>) visit(j, width - j);
}

// The row to normalise: x, or x + branch, which also goes to `sum`. Later passes over the row read
// what this returns; a lane reads only what it wrote itself.
template <typename T>
__device__ inline const T* JoinBranch(const T* x, const T* branch, T* sum, int64_t width) {
  if (branch == nullptr) return x;
  ForPacks<T>(width, [&](int64_t j, int64_t left) {
    const Pack<T> a = Load(x + j, left), b = Load(branch + j, left);
    Pack<T> out;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      out.at[k] = FromFloat<T>(ToFloat(a.at[k]) + ToFloat(b.at[k]));
    }
    Store(sum + j, left, out);
  });
  return sum;
}

}  // namespace headrace::cuda
