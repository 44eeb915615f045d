// Sums and maxima over a warp or a block, always by the same tree: lane l with lane l ^ 16, ^ 8, …,
// then the warps in ascending order.
#pragma once

#include "worker/backend/cuda/launch.h"

namespace headrace::cuda {

template <typename T>
__device__ inline T WarpSum(T v) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) v += __shfl_xor_sync(0xffffffffu, v, bits);
  return v;
}

// NaN is passed over, unless there is nothing else.
__device__ inline float WarpMax(float v) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, bits));
  }
  return v;
}

// For all threads of a block of whole warps, at most 32; every thread gets the result.
template <typename T>
__device__ inline T BlockSum(T v) {
  HEADRACE_SHARED(T, part, [32]);
  v = WarpSum(v);
  __syncthreads();  // what the last call left may still be read
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  T sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += part[w];
  return sum;
}

__device__ inline float BlockMax(float v) {
  HEADRACE_SHARED(float, part, [32]);
  v = WarpMax(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  float most = part[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) most = fmaxf(most, part[w]);
  return most;
}

}  // namespace headrace::cuda
