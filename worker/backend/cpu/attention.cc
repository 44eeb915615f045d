// Causal attention, head by head. The head's own work is the kernel's for the processor at hand
// (attention_kernel.h); here is what lies where, and which thread takes which head.
//
// The mask of (sequence, head, i, j) is number j mod 4 of block ((sequence · heads + head) · length
// + i) · ⌈length / 4⌉ + j / 4 of the stream, so that backward meets the same one.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "worker/backend/cpu/attention_head.h"
#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/random.h"

namespace headrace {
namespace {

constexpr int64_t kMaskChunk = 512;  // numbers drawn at a time

const AttentionKernel& Kernel() {
#if defined(__x86_64__)
  static const bool avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx512) return kAttentionAvx512;
  if (avx2) return kAttentionAvx2;
#endif
  return kAttentionGeneric;
}

void DrawMask(const AttentionHead& head, int64_t i, float* mask, int64_t stride) {
  const AttentionShape& shape = *head.shape;
  const uint32_t threshold = DropThreshold(shape.dropout);
  const float keep = 1.0f / (1.0f - shape.dropout);
  const uint64_t row =
      static_cast<uint64_t>((head.sequence * shape.heads + head.index) * shape.length + i);
  const uint64_t first = row * static_cast<uint64_t>((shape.length + 3) / 4);
  uint32_t random[kMaskChunk];
  for (int64_t j = 0; j <= i; j += kMaskChunk) {
    const int64_t count = std::min(kMaskChunk, i + 1 - j);
    RandomBlocks(shape.mask, first + static_cast<uint64_t>(j / 4), (count + 3) / 4, random);
    for (int64_t n = 0; n < count; ++n) {
      mask[(j + n) * stride] = (random[n] >> 8) < threshold ? 0.0f : keep;
    }
  }
}

// Where one query head's numbers lie in the packed buffers.
AttentionHead HeadAt(const AttentionShape& shape, const float* qkv, const float* out,
                     const float* lse, int64_t sequence, int64_t index) {
  AttentionHead head;
  head.length = shape.length;
  head.size = shape.size;
  head.scale = 1.0f / std::sqrt(static_cast<float>(shape.size));
  head.stride = (shape.heads + 2 * shape.kv_heads) * shape.size;
  const int64_t kv = index / (shape.heads / shape.kv_heads);
  const float* row = qkv + sequence * shape.length * head.stride;
  head.q = row + index * shape.size;
  head.k = row + (shape.heads + kv) * shape.size;
  head.v = row + (shape.heads + shape.kv_heads + kv) * shape.size;
  head.out_stride = shape.heads * shape.size;
  head.out =
      const_cast<float*>(out) + sequence * shape.length * head.out_stride + index * shape.size;
  head.lse = const_cast<float*>(lse) + (sequence * shape.heads + index) * shape.length;
  if (shape.dropout > 0) head.draw_mask = DrawMask;
  head.shape = &shape;
  head.sequence = sequence;
  head.index = index;
  return head;
}

// `tiles`: null for fp32.
void Forward(const AttentionHead& head, const Bf16Tiles* tiles, float* workspace) {
  if (tiles == nullptr) return Kernel().forward(head, workspace);
  Kernel().bf16_forward(head, *tiles, workspace);
}

void Backward(const AttentionHead& head, const Bf16Tiles* tiles, float* workspace) {
  if (tiles == nullptr) return Kernel().backward(head, workspace);
  Kernel().bf16_backward(head, *tiles, workspace);
}

// All query heads of one key-value head, in order: they add to the same dk and dv.
void BackwardGroup(const AttentionShape& shape, const float* dout, const float* qkv,
                   const float* out, const float* lse, float* dqkv, int64_t sequence, int64_t kv,
                   const Bf16Tiles* tiles, float* workspace) {
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t index = kv * group; index < (kv + 1) * group; ++index) {
    AttentionHead head = HeadAt(shape, qkv, out, lse, sequence, index);
    head.dout = dout + (head.out - out);
    head.dq = dqkv + (head.q - qkv);
    head.dk = dqkv + (head.k - qkv);
    head.dv = dqkv + (head.v - qkv);
    if (index == kv * group) {
      for (int64_t t = 0; t < shape.length; ++t) {
        std::fill_n(head.dk + t * head.stride, shape.size, 0.0f);
        std::fill_n(head.dv + t * head.stride, shape.size, 0.0f);
      }
    }
    Backward(head, tiles, workspace);
  }
}

// Calls body(item, the thread's workspace) for each item, one parallel loop.
template <typename Body>
void ForItems(int threads, int64_t items, const AttentionShape& shape, float* workspace,
              const Body& body) {
  const int64_t per_thread =
      AttentionWorkspaceBytes(shape, 1) / static_cast<int64_t>(sizeof(float));
  if (threads == 1 || items == 1) {
    for (int64_t item = 0; item < items; ++item) body(item, workspace);
    return;
  }
#pragma omp parallel for schedule(static)
  for (int64_t item = 0; item < items; ++item) {
    body(item, workspace + omp_get_thread_num() * per_thread);
  }
}

}  // namespace

int64_t AttentionWorkspaceBytes(const AttentionShape& shape, int threads) {
  const auto piece = [](int64_t floats) { return (floats + 15) / 16 * 16; };
  const int64_t size = std::max(shape.size, kAttentionLeastHead);
  const int64_t floats = 2 * piece((shape.length + kAttentionTileRows) * size + 16) +
                         piece(shape.length * size) + 3 * shape.length * kAttentionPanel +
                         5 * size * kAttentionPanel;
  return threads * floats * static_cast<int64_t>(sizeof(float));
}

void CpuOps::Attention(ConstAct qkv, Act out, float* lse, const AttentionShape& shape,
                       float* workspace) {
  const Bf16Tiles* tiles = products_->bf16_tiles();
  ForItems(
      threads_, shape.sequences * shape.heads, shape, workspace, [&](int64_t item, float* space) {
        Forward(HeadAt(shape, qkv.f32(), out.f32(), lse, item / shape.heads, item % shape.heads),
                tiles, space);
      });
}

void CpuOps::AttentionBackward(ConstAct dout, ConstAct qkv, ConstAct out, const float* lse,
                               Act dqkv, const AttentionShape& shape, float* workspace) {
  const Bf16Tiles* tiles = products_->bf16_tiles();
  ForItems(threads_, shape.sequences * shape.kv_heads, shape, workspace,
           [&](int64_t item, float* space) {
             BackwardGroup(shape, dout.f32(), qkv.f32(), out.f32(), lse, dqkv.f32(),
                           item / shape.kv_heads, item % shape.kv_heads, tiles, space);
           });
}

}  // namespace headrace
