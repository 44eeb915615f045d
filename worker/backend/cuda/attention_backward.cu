// Attention's backward pass in bfloat16 on tensor cores, in the two kernels that attention.h draws.
// Both go through scores 16 × 16 at a time, so that a head of 128 leaves room in the registers for
// its accumulators.
#include "worker/backend/cuda/attention_delta.h"
#include "worker/backend/cuda/attention_tiles.h"

namespace headrace::cuda {
namespace {

// dS of (row, key) from S and dP; also the masked probability, which dV needs.
template <bool kDropout>
__device__ float ScoreGradient(float score, float dp, float lse, float delta, const HeadShape& s,
                               int sequence, int head, int row, int key, float* masked) {
  const float p = __expf(score * s.scale - lse);
  *masked = kDropout ? p * MaskAt(s, sequence, head, row, key) : p;
  return (*masked * dp - p * delta) * s.scale;
}

// Rows row0 and row0 + 8 of a warp's accumulators as bfloat16, from `to`, the pair of row 0.
template <int kSize>
__device__ void StoreRows(Bf16* to, const float (&sum)[kSize / 8][4], int stride, int row0,
                          int length) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row0 + h * 8;
    if (row >= length) continue;
#pragma unroll
    for (int d = 0; d < kSize / 8; ++d) {
      StorePair(to + int64_t{row} * stride + d * 8, sum[d][2 * h], sum[d][2 * h + 1]);
    }
  }
}

template <int kSize, bool kDropout>
__global__ void __launch_bounds__(kTileThreads)
    QueryGradientKernel(const Bf16* dout, const Bf16* qkv, const float* lse, const float* delta,
                        Bf16* dqkv, HeadShape s) {
  HEADRACE_SHARED(TileRow<kSize>, k, [kTileRows]);
  HEADRACE_SHARED(TileRow<kSize>, v, [kTileRows]);
  const int head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (s.heads / s.kv_heads);
  const int first = (gridDim.x - 1 - blockIdx.x) * kTileRows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = lane % 4 * 2;
  const int row0 = first + warp * 16 + lane / 4;  // and row0 + 8

  LoadTile<kSize>(k, QueryAt(qkv, s, sequence, head), s.stride, first, s.length);
  LoadTile<kSize>(v, OutputAt(dout, s, sequence, head), s.out_stride, first, s.length);
  __syncthreads();
  uint32_t q[kSize / 16][4], d_out[kSize / 16][4];
#pragma unroll
  for (int d = 0; d < kSize / 16; ++d) {
    LoadA<kSize>(q[d], k, warp * 16, d * 16);
    LoadA<kSize>(d_out[d], v, warp * 16, d * 16);
  }
  float row_lse[2] = {}, row_delta[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row0 + h * 8 >= s.length) continue;
    row_lse[h] = lse[StatisticAt(s, sequence, head) + row0 + h * 8];
    row_delta[h] = delta[StatisticAt(s, sequence, head) + row0 + h * 8];
  }

  float dq[kSize / 8][4] = {};
  const int end = min(s.length, first + kTileRows);
  for (int tile = 0; tile < end; tile += kTileRows) {
    __syncthreads();
    LoadTile<kSize>(k, KeyAt(qkv, s, sequence, kv_head), s.stride, tile, s.length);
    LoadTile<kSize>(v, ValueAt(qkv, s, sequence, kv_head), s.stride, tile, s.length);
    __syncthreads();
#pragma unroll 1
    for (int at = 0; at < kTileRows; at += 16) {
      if (tile + at > first + warp * 16 + 15) break;  // right of the warp's diagonal
      float score[2][4] = {}, dp[2][4] = {};
#pragma unroll
      for (int d = 0; d < kSize / 16; ++d) {
        uint32_t b[4];
        LoadB<kSize>(b, k, at, d * 16);
        MmaBf16(score[0], q[d], b[0], b[1]);
        MmaBf16(score[1], q[d], b[2], b[3]);
        LoadB<kSize>(b, v, at, d * 16);
        MmaBf16(dp[0], d_out[d], b[0], b[1]);
        MmaBf16(dp[1], d_out[d], b[2], b[3]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int j = tile + at + n * 8 + pair + c % 2, i = row0 + c / 2 * 8;
          float ds = 0, masked;
          if (j <= i && i < s.length) {
            ds = ScoreGradient<kDropout>(score[n][c], dp[n][c], row_lse[c / 2], row_delta[c / 2], s,
                                         sequence, head, i, j, &masked);
          }
          score[n][c] = ds;
        }
      }
      uint32_t ds[4];
      PackA(ds, score[0], score[1]);
      MultiplyAdd<kSize>(dq, ds, k, at);
    }
  }
  StoreRows<kSize>(QueryAt(dqkv, s, sequence, head) + pair, dq, s.stride, row0, s.length);
}

// The tiles of the dK, dV kernel in dynamic shared memory.
template <int kSize>
struct KeyGradientTiles {
  TileRow<kSize> k[kTileRows], v[kTileRows], q[kTileRows], d_out[kTileRows];
  float lse[kTileRows], delta[kTileRows];
};

// Everything is transposed: a warp's 16 rows are keys, the columns of its scores are queries.
template <int kSize, bool kDropout>
__device__ void AddQueries(const KeyGradientTiles<kSize>& tiles, float (&dk)[kSize / 8][4],
                           float (&dv)[kSize / 8][4], const HeadShape& s, int sequence, int head,
                           int tile, int at, int key0) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = lane % 4 * 2;
  float score[2][4] = {}, dp[2][4] = {};
#pragma unroll
  for (int d = 0; d < kSize / 16; ++d) {
    uint32_t a[4], b[4];
    LoadA<kSize>(a, tiles.k, warp * 16, d * 16);
    LoadB<kSize>(b, tiles.q, at, d * 16);
    MmaBf16(score[0], a, b[0], b[1]);
    MmaBf16(score[1], a, b[2], b[3]);
    LoadA<kSize>(a, tiles.v, warp * 16, d * 16);
    LoadB<kSize>(b, tiles.d_out, at, d * 16);
    MmaBf16(dp[0], a, b[0], b[1]);
    MmaBf16(dp[1], a, b[2], b[3]);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int query = at + n * 8 + pair + c % 2;
      const int i = tile + query, j = key0 + c / 2 * 8;
      float ds = 0, masked = 0;
      if (j <= i && i < s.length) {
        ds = ScoreGradient<kDropout>(score[n][c], dp[n][c], tiles.lse[query], tiles.delta[query], s,
                                     sequence, head, i, j, &masked);
      }
      score[n][c] = masked;
      dp[n][c] = ds;
    }
  }
  uint32_t a[4];
  PackA(a, score[0], score[1]);
  MultiplyAdd<kSize>(dv, a, tiles.d_out, at);
  PackA(a, dp[0], dp[1]);
  MultiplyAdd<kSize>(dk, a, tiles.q, at);
}

template <int kSize, bool kDropout>
__global__ void __launch_bounds__(kTileThreads)
    KeyGradientKernel(const Bf16* dout, const Bf16* qkv, const float* lse, const float* delta,
                      Bf16* dqkv, HeadShape s) {
  HEADRACE_DYNAMIC_SHARED(KeyGradientTiles<kSize>, tiles);
  const int kv_head = blockIdx.y, sequence = blockIdx.z, group = s.heads / s.kv_heads;
  const int first = blockIdx.x * kTileRows, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int key0 = first + warp * 16 + lane / 4;  // and key0 + 8

  LoadTile<kSize>(tiles->k, KeyAt(qkv, s, sequence, kv_head), s.stride, first, s.length);
  LoadTile<kSize>(tiles->v, ValueAt(qkv, s, sequence, kv_head), s.stride, first, s.length);
  float dk[kSize / 8][4] = {}, dv[kSize / 8][4] = {};
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const int64_t statistics = StatisticAt(s, sequence, head);
    for (int tile = first; tile < s.length; tile += kTileRows) {
      __syncthreads();
      LoadTile<kSize>(tiles->q, QueryAt(qkv, s, sequence, head), s.stride, tile, s.length);
      LoadTile<kSize>(tiles->d_out, OutputAt(dout, s, sequence, head), s.out_stride, tile,
                      s.length);
      if (threadIdx.x < kTileRows) {
        const int row = tile + threadIdx.x;
        tiles->lse[threadIdx.x] = row < s.length ? lse[statistics + row] : 0.0f;
        tiles->delta[threadIdx.x] = row < s.length ? delta[statistics + row] : 0.0f;
      }
      __syncthreads();
#pragma unroll 1
      for (int at = 0; at < kTileRows; at += 16) {
        if (tile + at + 15 < first + warp * 16) continue;  // above the warp's diagonal
        AddQueries<kSize, kDropout>(*tiles, dk, dv, s, sequence, head, tile, at, key0);
      }
    }
  }
  const int pair = lane % 4 * 2;
  StoreRows<kSize>(KeyAt(dqkv, s, sequence, kv_head) + pair, dk, s.stride, key0, s.length);
  StoreRows<kSize>(ValueAt(dqkv, s, sequence, kv_head) + pair, dv, s.stride, key0, s.length);
}

template <int kSize>
cudaError_t Backward(const Bf16* dout, const Bf16* qkv, const float* lse, const float* delta,
                     Bf16* dqkv, const HeadShape& s, unsigned sequences, cudaStream_t stream) {
  const unsigned tiles = (s.length + kTileRows - 1) / kTileRows;
  cudaError_t error = Launch(
      s.threshold > 0 ? QueryGradientKernel<kSize, true> : QueryGradientKernel<kSize, false>,
      dim3(tiles, s.heads, sequences), kTileThreads, 0, stream, dout, qkv, lse, delta, dqkv, s);
  if (error != cudaSuccess) return error;
  constexpr int kSharedBytes = static_cast<int>(sizeof(KeyGradientTiles<kSize>));
  const auto kernel =
      s.threshold > 0 ? KeyGradientKernel<kSize, true> : KeyGradientKernel<kSize, false>;
  error = AllowShared(kernel, kSharedBytes);
  if (error != cudaSuccess) return error;
  return Launch(kernel, dim3(tiles, s.kv_heads, sequences), kTileThreads, kSharedBytes, stream,
                dout, qkv, lse, delta, dqkv, s);
}

}  // namespace

template <>
cudaError_t AttentionBackward<Bf16>(const Bf16* dout, const Bf16* qkv, const Bf16* out,
                                    const float* lse, Bf16* dqkv, float* delta,
                                    const AttentionShape& shape, cudaStream_t stream) {
  if (!HasAttention<Bf16>(shape.size)) return cudaErrorNotSupported;
  if (shape.sequences * shape.length == 0) return cudaSuccess;
  const HeadShape s = MakeHeadShape(shape);
  const auto sequences = static_cast<unsigned>(shape.sequences);
  const cudaError_t error = LaunchDelta(dout, out, delta, s, static_cast<int>(sequences), stream);
  if (error != cudaSuccess) return error;
  switch (shape.size) {
    case 32:
      return Backward<32>(dout, qkv, lse, delta, dqkv, s, sequences, stream);
    case 64:
      return Backward<64>(dout, qkv, lse, delta, dqkv, s, sequences, stream);
    case 96:
      return Backward<96>(dout, qkv, lse, delta, dqkv, s, sequences, stream);
    default:
      return Backward<128>(dout, qkv, lse, delta, dqkv, s, sequences, stream);
  }
}

}  // namespace headrace::cuda
