// Causal attention, 64 query rows at a time, on the packed buffer in place:
//
//            keys 0 … end of the block        Forward: S = scale · Q Kᵀ, softmax by row, O = P V.
//   rows   +-----------------------+---+      Backward: P again from S and lse; dP = dO Vᵀ;
//   0–63   |\                      .   |        dS = P ∘ (dP − rowsum(dO ∘ O)) · scale;
//   64–127 |   computed  \         .   |        dV += Pᵀ dO, dK += dSᵀ Q, dQ = dS K.
//   …      |                   \   .   |
//          +-----------------------+---+      Right of the diagonal block nothing is computed.
//
// With dropout, P in O and dV and dP in dS are masked and scaled by 1/(1 − p). The mask of
// (sequence, head, i, j) is number j mod 4 of block ((sequence · heads + head) · length + i) ·
// ⌈length / 4⌉ + j / 4 of the stream, so that backward meets the same one.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "worker/backend/cpu/cpu_ops.h"
#include "worker/backend/cpu/exp.h"
#include "worker/backend/cpu/gemm.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/random.h"
#include "worker/backend/cpu/reduce.h"

namespace headrace {
namespace {

constexpr int64_t kRows = 64;        // query rows of a block
constexpr int64_t kMaskChunk = 512;  // numbers drawn at a time

int64_t ScoreStride(const AttentionShape& shape) { return (shape.length + 15) / 16 * 16; }

// Where one head's numbers lie in the packed buffers.
struct Head {
  const float *q, *k, *v;
  int64_t stride;  // of qkv
  float scale;
};

Head HeadAt(const AttentionShape& shape, const float* qkv, int64_t sequence, int64_t head) {
  const int64_t stride = (shape.heads + 2 * shape.kv_heads) * shape.size;
  const int64_t kv = head / (shape.heads / shape.kv_heads);
  const float* row = qkv + sequence * shape.length * stride;
  return {row + head * shape.size, row + (shape.heads + kv) * shape.size,
          row + (shape.heads + shape.kv_heads + kv) * shape.size, stride,
          1.0f / std::sqrt(static_cast<float>(shape.size))};
}

// scores[i1 − i0, i1] = scale · Q[i0, i1) Kᵀ[0, i1)
void Scores(const AttentionShape& shape, const Head& head, int64_t i0, int64_t i1, float* scores) {
  Gemm(Transpose::kNo, Transpose::kYes, i1 - i0, i1, shape.size, head.scale,
       head.q + i0 * head.stride, head.stride, head.k, head.stride, 0.0f, scores,
       ScoreStride(shape));
}

// Rows i0 … i1 − 1 of scores become probabilities, zero right of the diagonal.
HEADRACE_KERNEL void Softmax(float* scores, int64_t stride, int64_t i0, int64_t i1, float* lse) {
  for (int64_t i = i0; i < i1; ++i) {
    float* row = scores + (i - i0) * stride;
    const int64_t count = i + 1;
    const float max = MaxOf(row, count);
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) row[j] = ExpFromBelow(row[j] - max);
    const float sum = SumOf<float>(count, [=](int64_t j) HEADRACE_INLINE_LAMBDA { return row[j]; });
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) row[j] *= inverse;
    for (int64_t j = count; j < i1; ++j) row[j] = 0.0f;
    lse[i] = max + std::log(sum);
  }
}

HEADRACE_KERNEL void MultiplyMask(float* row, const uint32_t* random, int64_t count,
                                  uint32_t threshold, float keep) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) row[j] *= (random[j] >> 8) < threshold ? 0.0f : keep;
}

// In: probabilities' scores and dP of columns [0, count) of a row. Out: masked P and dS.
HEADRACE_KERNEL void ScoreGradient(float* scores, float* dp, const uint32_t* random, int64_t count,
                                   uint32_t threshold, float keep, float lse, float delta,
                                   float scale) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float p = ExpFromBelow(scores[j] - lse);
    const float masked = p * ((random[j] >> 8) < threshold ? 0.0f : keep);
    scores[j] = masked;
    dp[j] = (masked * dp[j] - p * delta) * scale;
  }
}

HEADRACE_KERNEL void ScoreGradient(float* scores, float* dp, int64_t count, float lse, float delta,
                                   float scale) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float p = ExpFromBelow(scores[j] - lse);
    scores[j] = p;
    dp[j] = p * (dp[j] - delta) * scale;
  }
}

HEADRACE_KERNEL float Dot(const float* a, const float* b, int64_t n) {
  return SumOf<float>(n, [=](int64_t j) HEADRACE_INLINE_LAMBDA { return a[j] * b[j]; });
}

// Calls visit(first column, count, random numbers) for the mask of row i, columns 0 … i.
template <typename Visit>
void ForMask(const AttentionShape& shape, int64_t sequence, int64_t head, int64_t i,
             const Visit& visit) {
  const int64_t blocks_per_row = (shape.length + 3) / 4;
  const uint64_t row = static_cast<uint64_t>((sequence * shape.heads + head) * shape.length + i);
  uint32_t random[kMaskChunk];
  for (int64_t j = 0; j <= i; j += kMaskChunk) {
    const int64_t count = std::min(kMaskChunk, i + 1 - j);
    RandomBlocks(shape.mask,
                 row * static_cast<uint64_t>(blocks_per_row) + static_cast<uint64_t>(j / 4),
                 (count + 3) / 4, random);
    visit(j, count, random);
  }
}

void ForwardHead(const AttentionShape& shape, const float* qkv, float* out, float* lse,
                 int64_t sequence, int64_t h, float* scores) {
  const Head head = HeadAt(shape, qkv, sequence, h);
  const int64_t stride = ScoreStride(shape);
  const int64_t out_stride = shape.heads * shape.size;
  float* o = out + sequence * shape.length * out_stride + h * shape.size;
  float* head_lse = lse + (sequence * shape.heads + h) * shape.length;
  const uint32_t threshold = DropThreshold(shape.dropout);
  const float keep = 1.0f / (1.0f - shape.dropout);
  for (int64_t i0 = 0; i0 < shape.length; i0 += kRows) {
    const int64_t i1 = std::min(i0 + kRows, shape.length);
    Scores(shape, head, i0, i1, scores);
    Softmax(scores, stride, i0, i1, head_lse);
    if (shape.dropout > 0) {
      for (int64_t i = i0; i < i1; ++i) {
        float* row = scores + (i - i0) * stride;
        ForMask(shape, sequence, h, i, [&](int64_t j, int64_t count, const uint32_t* random) {
          MultiplyMask(row + j, random, count, threshold, keep);
        });
      }
    }
    Gemm(Transpose::kNo, Transpose::kNo, i1 - i0, shape.size, i1, 1.0f, scores, stride, head.v,
         head.stride, 0.0f, o + i0 * out_stride, out_stride);
  }
}

// Everything backward needs of one query head; the gradients of k and v are the group's.
struct HeadGradient {
  Head head;
  const float *dout, *out, *lse;
  float *dq, *dk, *dv;
  int64_t sequence, index;
};

// scores → masked P, dp → dS for rows [i0, i1).
void BlockGradient(const AttentionShape& shape, const HeadGradient& g, int64_t i0, int64_t i1,
                   float* scores, float* dp) {
  const int64_t stride = ScoreStride(shape);
  const int64_t out_stride = shape.heads * shape.size;
  const uint32_t threshold = DropThreshold(shape.dropout);
  const float keep = 1.0f / (1.0f - shape.dropout);
  for (int64_t i = i0; i < i1; ++i) {
    float* s = scores + (i - i0) * stride;
    float* d = dp + (i - i0) * stride;
    const float delta = Dot(g.dout + i * out_stride, g.out + i * out_stride, shape.size);
    if (shape.dropout > 0) {
      ForMask(shape, g.sequence, g.index, i, [&](int64_t j, int64_t count, const uint32_t* random) {
        ScoreGradient(s + j, d + j, random, count, threshold, keep, g.lse[i], delta, g.head.scale);
      });
    } else {
      ScoreGradient(s, d, i + 1, g.lse[i], delta, g.head.scale);
    }
    std::fill(s + i + 1, s + i1, 0.0f);
    std::fill(d + i + 1, d + i1, 0.0f);
  }
}

void BackwardHead(const AttentionShape& shape, const HeadGradient& g, float* scores, float* dp) {
  const Head& head = g.head;
  const int64_t size = shape.size;
  const int64_t stride = ScoreStride(shape);
  const int64_t out_stride = shape.heads * size;
  for (int64_t i0 = 0; i0 < shape.length; i0 += kRows) {
    const int64_t i1 = std::min(i0 + kRows, shape.length);
    const int64_t rows = i1 - i0;
    const float* dout = g.dout + i0 * out_stride;
    Scores(shape, head, i0, i1, scores);
    Gemm(Transpose::kNo, Transpose::kYes, rows, i1, size, 1.0f, dout, out_stride, head.v,
         head.stride, 0.0f, dp, stride);
    BlockGradient(shape, g, i0, i1, scores, dp);
    Gemm(Transpose::kYes, Transpose::kNo, i1, size, rows, 1.0f, scores, stride, dout, out_stride,
         1.0f, g.dv, head.stride);
    Gemm(Transpose::kYes, Transpose::kNo, i1, size, rows, 1.0f, dp, stride,
         head.q + i0 * head.stride, head.stride, 1.0f, g.dk, head.stride);
    Gemm(Transpose::kNo, Transpose::kNo, rows, size, i1, 1.0f, dp, stride, head.k, head.stride,
         0.0f, g.dq + i0 * head.stride, head.stride);
  }
}

// All query heads of one key-value head, in order: they add to the same dk and dv.
void BackwardGroup(const AttentionShape& shape, const float* dout, const float* qkv,
                   const float* out, const float* lse, float* dqkv, int64_t sequence, int64_t kv,
                   float* workspace) {
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t out_stride = shape.heads * shape.size;
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    HeadGradient g;
    g.head = HeadAt(shape, qkv, sequence, h);
    const int64_t out_at = sequence * shape.length * out_stride + h * shape.size;
    g.dout = dout + out_at;
    g.out = out + out_at;
    g.lse = lse + (sequence * shape.heads + h) * shape.length;
    g.dq = dqkv + (g.head.q - qkv);
    g.dk = dqkv + (g.head.k - qkv);
    g.dv = dqkv + (g.head.v - qkv);
    g.sequence = sequence;
    g.index = h;
    if (h == kv * group) {
      for (int64_t t = 0; t < shape.length; ++t) {
        std::fill_n(g.dk + t * g.head.stride, shape.size, 0.0f);
        std::fill_n(g.dv + t * g.head.stride, shape.size, 0.0f);
      }
    }
    BackwardHead(shape, g, workspace, workspace + kRows * ScoreStride(shape));
  }
}

// Calls body(item, the thread's workspace) for each item, one parallel loop.
template <typename Body>
void ForItems(int threads, int64_t items, const AttentionShape& shape, float* workspace,
              const Body& body) {
  const int64_t per_thread = 2 * kRows * ScoreStride(shape);
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
  return threads * 2 * kRows * ScoreStride(shape) * static_cast<int64_t>(sizeof(float));
}

void CpuOps::Attention(const float* qkv, float* out, float* lse, const AttentionShape& shape,
                       float* workspace) {
  ForItems(threads_, shape.sequences * shape.heads, shape, workspace,
           [&](int64_t item, float* scores) {
             ForwardHead(shape, qkv, out, lse, item / shape.heads, item % shape.heads, scores);
           });
}

void CpuOps::AttentionBackward(const float* dout, const float* qkv, const float* out,
                               const float* lse, float* dqkv, const AttentionShape& shape,
                               float* workspace) {
  ForItems(threads_, shape.sequences * shape.kv_heads, shape, workspace,
           [&](int64_t item, float* space) {
             BackwardGroup(shape, dout, qkv, out, lse, dqkv, item / shape.kv_heads,
                           item % shape.kv_heads, space);
           });
}

}  // namespace headrace
