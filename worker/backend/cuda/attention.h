// Causal attention on the packed buffer of q, k and v in place (FlashAttention-2, Dao 2023): scores
// are formed tile by tile in registers and never stored; backward forms them again from each row's
// log-sum-exp.
//
//        keys ─▶                 forward     a block: 64 query rows, over the tiles left of the
//        diagonal
//   q  |■ .        |             dQ          the same blocks: dQ = Σ dS K
//   u  |■ ■ .      |             dK, dV      a block: 64 keys of a key-value head, over the tiles
//   below e  |■ ■ ■ .    |                         the diagonal, all query heads of its group in
//   order ▼  |■ ■ ■ ■ .  |
//
// dQ and dK, dV are two kernels that each form S and dP: two products more than one kernel with
// atomic additions to dQ, and the same bits each time.
//
// Layouts as in worker/backend/ops.h: qkv, dqkv [n, (heads + 2 kv_heads) · size]; out, dout
// [n, heads · size]; lse [sequences, heads, length] fp32. Dropout masks are the CPU backend's
// (worker/backend/cpu/attention.cc), bit for bit.
//
// bfloat16: tensor cores (mma.sync m16n8k16, fp32 accumulation; probabilities and their gradients
// are rounded to bfloat16 for the second product), head sizes 32, 64, 96, 128. float: fp32
// arithmetic on CUDA cores, any head size up to 128.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/launch.h"
#include "worker/backend/cuda/pack.h"
#include "worker/backend/ops.h"

namespace headrace::cuda {

// Whether T has kernels for this head size.
template <typename T>
bool HasAttention(int64_t size);
template <>
bool HasAttention<float>(int64_t size);
template <>
bool HasAttention<Bf16>(int64_t size);

// cudaErrorNotSupported: no kernel for the head size.
template <typename T>
cudaError_t Attention(const T* qkv, T* out, float* lse, const AttentionShape& shape,
                      cudaStream_t stream);
// Sets dqkv. delta: scratch of sequences · heads · length floats.
template <typename T>
cudaError_t AttentionBackward(const T* dout, const T* qkv, const T* out, const float* lse, T* dqkv,
                              float* delta, const AttentionShape& shape, cudaStream_t stream);

}  // namespace headrace::cuda
