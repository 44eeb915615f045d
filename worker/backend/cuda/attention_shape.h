// An AttentionShape as attention's kernels take it, and where a head's numbers lie.
#pragma once

#include <cmath>

#include "worker/backend/cuda/attention.h"
#include "worker/backend/cuda/random.h"

namespace headrace::cuda {

struct HeadShape {
  int length, heads, kv_heads, size;
  int stride, out_stride;  // of a row of qkv, of out
  float scale;             // 1 / √size
  float keep;              // 1 / (1 − p)
  uint32_t threshold;      // of dropout; 0: none
  Stream mask;
};

inline HeadShape MakeHeadShape(const AttentionShape& s) {
  HeadShape h;
  h.length = static_cast<int>(s.length);
  h.heads = static_cast<int>(s.heads);
  h.kv_heads = static_cast<int>(s.kv_heads);
  h.size = static_cast<int>(s.size);
  h.stride = (h.heads + 2 * h.kv_heads) * h.size;
  h.out_stride = h.heads * h.size;
  h.scale = 1.0f / std::sqrt(static_cast<float>(s.size));
  h.keep = 1.0f / (1.0f - s.dropout);
  h.threshold = DropThreshold(s.dropout);
  h.mask = DeviceStream(s.mask);
  return h;
}

// First element of q, k and v of a sequence's row 0, of a query head's output and its row
// statistics.
template <typename T>
__device__ inline T* QueryAt(T* qkv, const HeadShape& s, int sequence, int head) {
  return qkv + int64_t{sequence} * s.length * s.stride + head * s.size;
}
template <typename T>
__device__ inline T* KeyAt(T* qkv, const HeadShape& s, int sequence, int kv_head) {
  return qkv + int64_t{sequence} * s.length * s.stride + (s.heads + kv_head) * s.size;
}
template <typename T>
__device__ inline T* ValueAt(T* qkv, const HeadShape& s, int sequence, int kv_head) {
  return KeyAt(qkv, s, sequence, kv_head) + s.kv_heads * s.size;
}
template <typename T>
__device__ inline T* OutputAt(T* out, const HeadShape& s, int sequence, int head) {
  return out + int64_t{sequence} * s.length * s.out_stride + head * s.size;
}
__device__ inline int64_t StatisticAt(const HeadShape& s, int sequence, int head) {
  return (int64_t{sequence} * s.heads + head) * s.length;
}

// keep or 0 for the probability of (query i, key j): number j mod 4 of block
// ((sequence · heads + head) · length + i) · ⌈length / 4⌉ + j / 4.
__device__ inline float MaskAt(const HeadShape& s, int sequence, int head, int i, int j) {
  const uint64_t row = static_cast<uint64_t>(StatisticAt(s, sequence, head) + i);
  const Block random = RandomBlock(
      s.mask, row * static_cast<uint64_t>((s.length + 3) / 4) + static_cast<uint64_t>(j / 4));
  const uint32_t low = j % 2 == 0 ? random.at[0] : random.at[1];
  const uint32_t high = j % 2 == 0 ? random.at[2] : random.at[3];
  return ((j % 4 < 2 ? low : high) >> 8) < s.threshold ? 0.0f : s.keep;
}

// The same of keys j and j + 1, for an even j: both lie in one block.
struct MaskPair {
  float at[2];
};
__device__ inline MaskPair MaskPairAt(const HeadShape& s, int sequence, int head, int i, int j) {
  const uint64_t row = static_cast<uint64_t>(StatisticAt(s, sequence, head) + i);
  const Block random = RandomBlock(
      s.mask, row * static_cast<uint64_t>((s.length + 3) / 4) + static_cast<uint64_t>(j / 4));
  const uint32_t first = j % 4 == 0 ? random.at[0] : random.at[2];
  const uint32_t second = j % 4 == 0 ? random.at[1] : random.at[3];
  return {
      {(first >> 8) < s.threshold ? 0.0f : s.keep, (second >> 8) < s.threshold ? 0.0f : s.keep}};
}

}  // namespace headrace::cuda
