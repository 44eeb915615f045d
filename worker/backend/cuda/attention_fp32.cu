// Attention in fp32 on CUDA cores. A warp takes kRows query rows (or keys, in the dK, dV kernel)
// and goes over tiles of 32 keys (or queries) that its block put into shared memory: lane l forms
// the product of its row with row l of the tile, then the lanes share out the head's elements.
#include "worker/backend/cuda/attention_delta.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kRows = 4, kTile = 32;
constexpr int kBlockRows = kWarps * kRows;
constexpr int kMostSize = 128, kParts = kMostSize / 32;  // elements of a head a lane sums
constexpr int kThreadsOfBlock = 32 * kWarps;

// Rows of kMostSize + 1 floats: lanes that read one column of all rows meet no bank twice.
constexpr int kStride = kMostSize + 1;

// tile[r] = rows first + r of `from`, 0 beyond the length.
__device__ void LoadTile(float (&tile)[kTile][kStride], const float* from, int stride, int first,
                         int length, int size) {
  for (int i = threadIdx.x; i < kTile * ((size + 3) / 4); i += kThreadsOfBlock) {
    const int r = i / ((size + 3) / 4), c = i % ((size + 3) / 4) * 4;
    const Pack<float> pack =
        first + r < length ? Load(from + int64_t{first + r} * stride + c, size - c) : Pack<float>{};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (c + k < size) tile[r][c + k] = pack.at[k];
    }
  }
}

// The block's own rows, as LoadTile.
__device__ void LoadRows(float (&rows)[kBlockRows][kStride], const float* from, int stride,
                         int first, int length, int size) {
  for (int i = threadIdx.x; i < kBlockRows * size; i += kThreadsOfBlock) {
    const int r = i / size, c = i % size;
    rows[r][c] = first + r < length ? from[int64_t{first + r} * stride + c] : 0.0f;
  }
}

__device__ float DotRows(const float* a, const float* b, int size) {
  float sum = 0;
  for (int c = 0; c < size; ++c) sum += a[c] * b[c];
  return sum;
}

// sum[part] += Σ_l weights[l] · tile[l][lane + 32 · part]
__device__ void AddWeighted(float (&sum)[kParts], const float (&weights)[kTile],
                            const float (&tile)[kTile][kStride], int size) {
  const int lane = threadIdx.x % 32;
  for (int l = 0; l < kTile; ++l) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (lane + 32 * part < size) sum[part] += weights[l] * tile[l][lane + 32 * part];
    }
  }
}

template <bool kDropout>
__global__ void __launch_bounds__(kThreadsOfBlock)
    ForwardKernel(const float* qkv, float* out, float* lse, HeadShape s) {
  HEADRACE_SHARED(float, q, [kBlockRows][kStride]);
  HEADRACE_SHARED(float, tile, [kTile][kStride]);
  HEADRACE_SHARED(float, weights, [kWarps][kRows][kTile]);
  const int head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (s.heads / s.kv_heads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * kBlockRows;
  LoadRows(q, QueryAt(qkv, s, sequence, head), s.stride, first, s.length, s.size);
  float sum[kRows][kParts] = {}, max[kRows], total[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) max[r] = -INFINITY, total[r] = 0;
  const int end = min(s.length, first + kBlockRows);
  for (int key = 0; key < end; key += kTile) {
    __syncthreads();
    LoadTile(tile, KeyAt(qkv, s, sequence, kv_head), s.stride, key, s.length, s.size);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first + warp * kRows + r, j = key + lane;
      float score = -INFINITY;
      if (j <= row) score = DotRows(q[warp * kRows + r], tile[lane], s.size) * s.scale;
      const float most = fmaxf(max[r], WarpMax(score));
      const float p = j <= row ? expf(score - most) : 0.0f;
      const float shrink = max[r] == -INFINITY ? 0.0f : expf(max[r] - most);
      total[r] = total[r] * shrink + WarpSum(p);
      max[r] = most;
#pragma unroll
      for (int part = 0; part < kParts; ++part) sum[r][part] *= shrink;
      weights[warp][r][lane] = kDropout ? p * MaskAt(s, sequence, head, row, j) : p;
    }
    __syncthreads();
    LoadTile(tile, ValueAt(qkv, s, sequence, kv_head), s.stride, key, s.length, s.size);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) AddWeighted(sum[r], weights[warp][r], tile, s.size);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = first + warp * kRows + r;
    if (row >= s.length) continue;
    float* o = OutputAt(out, s, sequence, head) + int64_t{row} * s.out_stride;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (lane + 32 * part < s.size) o[lane + 32 * part] = sum[r][part] / total[r];
    }
    if (lane == 0) lse[StatisticAt(s, sequence, head) + row] = max[r] + logf(total[r]);
  }
}

// dS of (row, key) from S and dP; also the masked probability, which dV needs.
template <bool kDropout>
__device__ float ScoreGradient(float score, float dp, float lse, float delta, const HeadShape& s,
                               int sequence, int head, int row, int key, float* masked) {
  const float p = expf(score * s.scale - lse);
  *masked = kDropout ? p * MaskAt(s, sequence, head, row, key) : p;
  return (*masked * dp - p * delta) * s.scale;
}

template <bool kDropout>
__global__ void __launch_bounds__(kThreadsOfBlock)
    QueryGradientKernel(const float* dout, const float* qkv, const float* lse, const float* delta,
                        float* dqkv, HeadShape s) {
  HEADRACE_SHARED(float, q, [kBlockRows][kStride]);
  HEADRACE_SHARED(float, d, [kBlockRows][kStride]);
  HEADRACE_SHARED(float, tile, [kTile][kStride]);
  HEADRACE_SHARED(float, weights, [kWarps][kRows][kTile]);
  const int head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (s.heads / s.kv_heads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * kBlockRows;
  const int64_t statistics = StatisticAt(s, sequence, head);
  LoadRows(q, QueryAt(qkv, s, sequence, head), s.stride, first, s.length, s.size);
  LoadRows(d, OutputAt(dout, s, sequence, head), s.out_stride, first, s.length, s.size);
  float sum[kRows][kParts] = {};
  const int end = min(s.length, first + kBlockRows);
  for (int key = 0; key < end; key += kTile) {
    float dp[kRows];
    __syncthreads();
    LoadTile(tile, ValueAt(qkv, s, sequence, kv_head), s.stride, key, s.length, s.size);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) dp[r] = DotRows(d[warp * kRows + r], tile[lane], s.size);
    __syncthreads();
    LoadTile(tile, KeyAt(qkv, s, sequence, kv_head), s.stride, key, s.length, s.size);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first + warp * kRows + r, j = key + lane;
      float ds = 0, masked;
      if (row < s.length && j <= row) {
        ds = ScoreGradient<kDropout>(DotRows(q[warp * kRows + r], tile[lane], s.size), dp[r],
                                     lse[statistics + row], delta[statistics + row], s, sequence,
                                     head, row, j, &masked);
      }
      weights[warp][r][lane] = ds;
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kRows; ++r) AddWeighted(sum[r], weights[warp][r], tile, s.size);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = first + warp * kRows + r;
    if (row >= s.length) continue;
    float* dq = QueryAt(dqkv, s, sequence, head) + int64_t{row} * s.stride;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (lane + 32 * part < s.size) dq[lane + 32 * part] = sum[r][part];
    }
  }
}

template <bool kDropout>
__global__ void __launch_bounds__(kThreadsOfBlock)
    KeyGradientKernel(const float* dout, const float* qkv, const float* lse, const float* delta,
                      float* dqkv, HeadShape s) {
  HEADRACE_SHARED(float, k, [kBlockRows][kStride]);
  HEADRACE_SHARED(float, v, [kBlockRows][kStride]);
  HEADRACE_SHARED(float, tile, [kTile][kStride]);
  HEADRACE_SHARED(float, weights, [kWarps][kRows][kTile]);
  const int kv_head = blockIdx.y, sequence = blockIdx.z, group = s.heads / s.kv_heads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * kBlockRows;
  LoadRows(k, KeyAt(qkv, s, sequence, kv_head), s.stride, first, s.length, s.size);
  LoadRows(v, ValueAt(qkv, s, sequence, kv_head), s.stride, first, s.length, s.size);
  float dk[kRows][kParts] = {}, dv[kRows][kParts] = {};
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const int64_t statistics = StatisticAt(s, sequence, head);
    for (int query = first / kTile * kTile; query < s.length; query += kTile) {
      const int i = query + lane;
      float score[kRows], masked[kRows], ds[kRows];
      __syncthreads();
      LoadTile(tile, QueryAt(qkv, s, sequence, head), s.stride, query, s.length, s.size);
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kRows; ++r) score[r] = DotRows(k[warp * kRows + r], tile[lane], s.size);
      __syncthreads();
      LoadTile(tile, OutputAt(dout, s, sequence, head), s.out_stride, query, s.length, s.size);
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int key = first + warp * kRows + r;
        masked[r] = ds[r] = 0;
        if (i < s.length && key <= i) {
          const float dp = DotRows(v[warp * kRows + r], tile[lane], s.size);
          ds[r] = ScoreGradient<kDropout>(score[r], dp, lse[statistics + i], delta[statistics + i],
                                          s, sequence, head, i, key, &masked[r]);
        }
        weights[warp][r][lane] = masked[r];
      }
      __syncwarp();
#pragma unroll
      for (int r = 0; r < kRows; ++r) AddWeighted(dv[r], weights[warp][r], tile, s.size);
      __syncwarp();
#pragma unroll
      for (int r = 0; r < kRows; ++r) weights[warp][r][lane] = ds[r];
      __syncthreads();
      LoadTile(tile, QueryAt(qkv, s, sequence, head), s.stride, query, s.length, s.size);
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kRows; ++r) AddWeighted(dk[r], weights[warp][r], tile, s.size);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int key = first + warp * kRows + r;
    if (key >= s.length) continue;
    float* dk_row = KeyAt(dqkv, s, sequence, kv_head) + int64_t{key} * s.stride;
    float* dv_row = ValueAt(dqkv, s, sequence, kv_head) + int64_t{key} * s.stride;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (lane + 32 * part >= s.size) continue;
      dk_row[lane + 32 * part] = dk[r][part];
      dv_row[lane + 32 * part] = dv[r][part];
    }
  }
}

}  // namespace

template <>
bool HasAttention<float>(int64_t size) {
  return size >= 1 && size <= kMostSize;
}

template <>
cudaError_t Attention<float>(const float* qkv, float* out, float* lse, const AttentionShape& shape,
                             cudaStream_t stream) {
  if (!HasAttention<float>(shape.size)) return cudaErrorNotSupported;
  if (shape.sequences * shape.length == 0) return cudaSuccess;
  const HeadShape s = MakeHeadShape(shape);
  const dim3 blocks((s.length + kBlockRows - 1) / kBlockRows, s.heads,
                    static_cast<unsigned>(shape.sequences));
  return Launch(s.threshold > 0 ? ForwardKernel<true> : ForwardKernel<false>, blocks,
                kThreadsOfBlock, 0, stream, qkv, out, lse, s);
}

template <>
cudaError_t AttentionBackward<float>(const float* dout, const float* qkv, const float* out,
                                     const float* lse, float* dqkv, float* delta,
                                     const AttentionShape& shape, cudaStream_t stream) {
  if (!HasAttention<float>(shape.size)) return cudaErrorNotSupported;
  if (shape.sequences * shape.length == 0) return cudaSuccess;
  const HeadShape s = MakeHeadShape(shape);
  const auto sequences = static_cast<unsigned>(shape.sequences);
  const unsigned tiles = (s.length + kBlockRows - 1) / kBlockRows;
  cudaError_t error = LaunchDelta(dout, out, delta, s, static_cast<int>(sequences), stream);
  if (error != cudaSuccess) return error;
  error = Launch(s.threshold > 0 ? QueryGradientKernel<true> : QueryGradientKernel<false>,
                 dim3(tiles, s.heads, sequences), kThreadsOfBlock, 0, stream, dout, qkv, lse, delta,
                 dqkv, s);
  if (error != cudaSuccess) return error;
  return Launch(s.threshold > 0 ? KeyGradientKernel<true> : KeyGradientKernel<false>,
                dim3(tiles, s.kv_heads, sequences), kThreadsOfBlock, 0, stream, dout, qkv, lse,
                delta, dqkv, s);
}

}  // namespace headrace::cuda
