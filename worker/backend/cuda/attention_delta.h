// delta[sequence, head, row] = Σ dout ∘ out over the row's head: what the softmax's gradient
// subtracts.
#pragma once

#include "worker/backend/cuda/attention_shape.h"
#include "worker/backend/cuda/reduce.h"

namespace headrace::cuda {

inline constexpr int kDeltaRows = 4;  // warps of a block

template <typename T>
__global__ void __launch_bounds__(32 * kDeltaRows)
    DeltaKernel(const T* dout, const T* out, float* delta, HeadShape s) {
  const int row = blockIdx.x * kDeltaRows + threadIdx.x / 32;
  const int head = blockIdx.y, sequence = blockIdx.z, lane = threadIdx.x % 32;
  if (row >= s.length) return;
  const int64_t at = OutputAt(out, s, sequence, head) - out + int64_t{row} * s.out_stride;
  float sum = 0;
  for (int j = lane * kPack<T>; j < s.size; j += 32 * kPack<T>) {
    const Pack<T> a = Load(dout + at + j, s.size - j), b = Load(out + at + j, s.size - j);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) sum += ToFloat(a.at[k]) * ToFloat(b.at[k]);
  }
  sum = WarpSum(sum);
  if (lane == 0) delta[StatisticAt(s, sequence, head) + row] = sum;
}

template <typename T>
cudaError_t LaunchDelta(const T* dout, const T* out, float* delta, const HeadShape& s,
                        int sequences, cudaStream_t stream) {
  const dim3 blocks((s.length + kDeltaRows - 1) / kDeltaRows, s.heads, sequences);
  return Launch(DeltaKernel<T>, blocks, 32 * kDeltaRows, 0, stream, dout, out, delta, s);
}

}  // namespace headrace::cuda
