// Attention's forward pass in bfloat16 on tensor cores. A warp holds 16 query rows: their q as
// operands, their output and the softmax's running maximum and sum in registers.
#include "worker/backend/cuda/attention_tiles.h"

namespace headrace::cuda {
namespace {

// A row's scores lie with the four lanes of its group.
__device__ float GroupMax(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
__device__ float GroupSum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

// What a warp keeps of its rows while it goes over the keys: [0] of row0, [1] of row0 + 8.
template <int kSize>
struct Running {
  float sum[kSize / 8][4] = {};
  float max[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
};

// scores = q · kᵀ of 64 keys.
template <int kSize>
__device__ void Scores(float (&score)[8][4], const uint32_t (&q)[kSize / 16][4],
                       const TileRow<kSize>* k) {
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
#pragma unroll
    for (int d = 0; d < kSize / 16; ++d) {
      uint32_t b[4];
      LoadB<kSize>(b, k, n * 8, d * 16);
      MmaBf16(score[n], q[d], b[0], b[1]);
      MmaBf16(score[n + 1], q[d], b[2], b[3]);
    }
  }
}

// Scales the scores, hides the future, and brings what was summed so far to the new maximum.
template <int kSize>
__device__ void MoveMaximum(float (&score)[8][4], Running<kSize>& running, float scale, int row0,
                            int key0) {
  float most[2] = {running.max[0], running.max[1]};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int j = key0 + n * 8 + c % 2, i = row0 + c / 2 * 8;
      score[n][c] = j <= i ? score[n][c] * scale : -INFINITY;
      most[c / 2] = fmaxf(most[c / 2], score[n][c]);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    most[h] = GroupMax(most[h]);
    const float shrink = running.max[h] == -INFINITY ? 0.0f : __expf(running.max[h] - most[h]);
    running.max[h] = most[h];
    running.total[h] *= shrink;
#pragma unroll
    for (int d = 0; d < kSize / 8; ++d) {
      running.sum[d][2 * h] *= shrink;
      running.sum[d][2 * h + 1] *= shrink;
    }
  }
}

template <int kSize, bool kDropout>
__global__ void __launch_bounds__(kTileThreads, kSize <= 64 ? 3 : 2)
    ForwardKernel(const Bf16* qkv, Bf16* out, float* lse, HeadShape s) {
  HEADRACE_SHARED(TileRow<kSize>, k, [kTileRows]);
  HEADRACE_SHARED(TileRow<kSize>, v, [kTileRows]);
  const int head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (s.heads / s.kv_heads);
  const int first = (gridDim.x - 1 - blockIdx.x) * kTileRows;  // the longest rows begin first
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = lane % 4 * 2;
  const int row0 = first + warp * 16 + lane / 4;  // and row0 + 8

  LoadTile<kSize>(k, QueryAt(qkv, s, sequence, head), s.stride, first, s.length);
  __syncthreads();
  uint32_t q[kSize / 16][4];
#pragma unroll
  for (int d = 0; d < kSize / 16; ++d) LoadA<kSize>(q[d], k, warp * 16, d * 16);

  Running<kSize> running;
  const int end = min(s.length, first + kTileRows);
  for (int key = 0; key < end; key += kTileRows) {
    __syncthreads();
    LoadTile<kSize>(k, KeyAt(qkv, s, sequence, kv_head), s.stride, key, s.length);
    LoadTile<kSize>(v, ValueAt(qkv, s, sequence, kv_head), s.stride, key, s.length);
    __syncthreads();
    float score[8][4] = {}, part[2] = {0, 0};
    Scores<kSize>(score, q, k);
    MoveMaximum<kSize>(score, running, s.scale, row0, key + pair);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int j = key + n * 8 + pair, i = row0 + h * 8;
        const float p = j <= i ? __expf(score[n][2 * h] - running.max[h]) : 0.0f;
        const float r = j < i ? __expf(score[n][2 * h + 1] - running.max[h]) : 0.0f;
        part[h] += p + r;
        const MaskPair mask = kDropout ? MaskPairAt(s, sequence, head, i, j) : MaskPair{{1, 1}};
        score[n][2 * h] = p * mask.at[0];
        score[n][2 * h + 1] = r * mask.at[1];
      }
    }
    running.total[0] += GroupSum(part[0]);
    running.total[1] += GroupSum(part[1]);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t p[4];
      PackA(p, score[n], score[n + 1]);
      MultiplyAdd<kSize>(running.sum, p, v, n * 8);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row0 + h * 8;
    if (row >= s.length) continue;
    const float inverse = 1.0f / running.total[h];
    Bf16* o = OutputAt(out, s, sequence, head) + int64_t{row} * s.out_stride + pair;
#pragma unroll
    for (int d = 0; d < kSize / 8; ++d) {
      StorePair(o + d * 8, running.sum[d][2 * h] * inverse, running.sum[d][2 * h + 1] * inverse);
    }
    if (pair == 0) {
      lse[StatisticAt(s, sequence, head) + row] = running.max[h] + logf(running.total[h]);
    }
  }
}

template <int kSize>
cudaError_t Forward(const Bf16* qkv, Bf16* out, float* lse, const HeadShape& s, unsigned sequences,
                    cudaStream_t stream) {
  const dim3 blocks((s.length + kTileRows - 1) / kTileRows, s.heads, sequences);
  return Launch(s.threshold > 0 ? ForwardKernel<kSize, true> : ForwardKernel<kSize, false>, blocks,
                kTileThreads, 0, stream, qkv, out, lse, s);
}

}  // namespace

template <>
bool HasAttention<Bf16>(int64_t size) {
  return size == 32 || size == 64 || size == 96 || size == 128;
}

template <>
cudaError_t Attention<Bf16>(const Bf16* qkv, Bf16* out, float* lse, const AttentionShape& shape,
                            cudaStream_t stream) {
  if (!HasAttention<Bf16>(shape.size)) return cudaErrorNotSupported;
  if (shape.sequences * shape.length == 0) return cudaSuccess;
  const HeadShape s = MakeHeadShape(shape);
  const auto sequences = static_cast<unsigned>(shape.sequences);
  switch (shape.size) {
    case 32:
      return Forward<32>(qkv, out, lse, s, sequences, stream);
    case 64:
      return Forward<64>(qkv, out, lse, s, sequences, stream);
    case 96:
      return Forward<96>(qkv, out, lse, s, sequences, stream);
    default:
      return Forward<128>(qkv, out, lse, s, sequences, stream);
  }
}

}  // namespace headrace::cuda
