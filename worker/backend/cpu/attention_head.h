// One head's attention: what attention.cc asks of the kernel for the processor at hand.
#pragma once

#include <cstdint>

#include "worker/backend/ops.h"

namespace headrace {

struct Bf16Tiles;

// The largest tile of any kernel, for the size of the workspace: rows, and queries of a panel.
inline constexpr int64_t kAttentionTileRows = 14;
inline constexpr int64_t kAttentionPanel = 32;
// A head counts as at least this wide, for bf16's strips of 14 would not fit else.
inline constexpr int64_t kAttentionLeastHead = 4;

struct AttentionHead {
  int64_t length = 0, size = 0;
  float scale = 1;
  // Row t of each lies `stride` floats behind row t − 1: columns of the packed buffer, and of its
  // gradient. dk and dv are added to, dq is set.
  int64_t stride = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  float *dq = nullptr, *dk = nullptr, *dv = nullptr;
  // Forward sets out and lse, backward reads them.
  int64_t out_stride = 0;
  float* out = nullptr;
  float* lse = nullptr;
  const float* dout = nullptr;
  // Null: no dropout. Sets mask[j · stride], j ≤ i, to the factor of probability (i, j).
  void (*draw_mask)(const AttentionHead& head, int64_t i, float* mask, int64_t stride) = nullptr;
  const AttentionShape* shape = nullptr;  // what draw_mask wants
  int64_t sequence = 0, index = 0;
};

// `workspace`: AttentionWorkspaceBytes for one thread, at kAlignment where products are bf16.
struct AttentionKernel {
  void (*forward)(const AttentionHead& head, float* workspace);
  void (*backward)(const AttentionHead& head, float* workspace);
  // With the inputs of products rounded to bf16 (bf16_tiles.h).
  void (*bf16_forward)(const AttentionHead& head, const Bf16Tiles& tiles, float* workspace);
  void (*bf16_backward)(const AttentionHead& head, const Bf16Tiles& tiles, float* workspace);
};

extern const AttentionKernel kAttentionAvx512, kAttentionAvx2, kAttentionGeneric;

}  // namespace headrace
