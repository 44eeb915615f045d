// Attention of one head with bf16 tiles (bf16_tiles.h): the walk of attention_kernel.h, which this
// is included behind, with each product's inputs rounded to bf16. Scores, softmax and all sums are
// fp32, by the same code for both kinds of tiles, so that emulation gives the processor's bits.
//
// Panels have kTileColumns queries for vectors of any width. An element is one chain over k in
// pairs; dk and dv are sums of such chains over a panel's queries each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "worker/backend/cpu/attention_head.h"
#include "worker/backend/cpu/attention_kernel.h"
#include "worker/backend/cpu/bf16_tiles.h"

namespace headrace {
namespace {

constexpr int kBf16Queries = kTileColumns;  // of a panel
static_assert(kBf16Queries == kShortRow && kBf16Queries <= kAttentionPanel);
static_assert(kTileRows <= kAttentionTileRows);

int64_t Strips(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// The pieces of a thread's workspace: no more than Scratch takes of it, as AttentionWorkspaceBytes
// counts a head as at least kAttentionLeastHead wide.
struct Bf16Scratch {
  Bf16Scratch(const AttentionHead& h, float* space)
      : size_pairs((h.size + 1) / 2), length_pairs((h.length + 1) / 2) {
    const auto floats = [&space](int64_t count) {
      float* piece = space;
      space += (count + 15) / 16 * 16;
      return piece;
    };
    const auto pairs = [&](int64_t count) { return reinterpret_cast<uint32_t*>(floats(count)); };
    p = floats(h.length * kBf16Queries), dp = floats(h.length * kBf16Queries);
    mask = floats(h.length * kBf16Queries);
    result = floats(h.size * kBf16Queries);
    query = pairs(size_pairs * kTileColumns), gradient = pairs(size_pairs * kTileColumns);
    keys = pairs(Strips(h.length) * kTileRows * size_pairs);
    values = pairs(Strips(h.length) * kTileRows * size_pairs);
    by_size = pairs(Strips(h.size) * kTileRows * length_pairs);
    panel = reinterpret_cast<uint32_t*>(mask);
  }

  int64_t size_pairs, length_pairs;
  float *p, *dp, *mask, *result /* [size][query] */;
  uint32_t *query, *gradient;  // strips of b, pairs along the size
  uint32_t *keys, *values;     // strips of a, pairs along the size
  uint32_t* by_size;           // strips of a, pairs along the keys, of keys or values
  uint32_t* panel;  // strips of b, pairs along keys or queries, once the mask is done with
};

// Strips of kTileRows keys of x[length, size].
void PackKeys(const Bf16Tiles& tiles, const AttentionHead& h, const float* x, uint32_t* out) {
  const int64_t strip = kTileRows * ((h.size + 1) / 2);
  for (int64_t r = 0; r < h.length; r += kTileRows, out += strip) {
    tiles.pack_rows_transposed(x + r * h.stride, h.stride, h.size,
                               std::min(kTileRows, h.length - r), out);
  }
}

// Strips of kTileRows columns of x[length, size].
void PackSizes(const Bf16Tiles& tiles, const AttentionHead& h, const float* x, uint32_t* out) {
  const int64_t strip = kTileRows * ((h.length + 1) / 2);
  for (int64_t d = 0; d < h.size; d += kTileRows, out += strip) {
    tiles.pack_rows(x + d, h.stride, h.length, std::min(kTileRows, h.size - d), out);
  }
}

// c[rows, columns] = alpha · a · b (+ c), a's strips `a_strip` pairs apart.
void Multiply(const Bf16Tiles& tiles, int64_t rows, Strip strip, int64_t a_strip, Bf16Tile tile) {
  float* const c = tile.c;
  const uint32_t* const a = tile.a;
  for (int64_t r = 0; r < rows; r += kTileRows) {
    tile.a = a + r / kTileRows * a_strip;
    tile.c = c + r * tile.ldc;
    tiles.compute(std::min(kTileRows, rows - r), strip, tile);
  }
}

// out[keys, kBf16Queries] = alpha · (keys or values) · (queries or gradients)ᵀ
void AlongSize(const Bf16Tiles& tiles, const Bf16Scratch& s, const uint32_t* a, const uint32_t* b,
               int64_t keys, float alpha, float* out) {
  Multiply(tiles, keys, Strip::kSteps, kTileRows * s.size_pairs,
           {.a = a,
            .b = b,
            .pairs = s.size_pairs,
            .alpha = alpha,
            .c = out,
            .ldc = kBf16Queries,
            .columns = kBf16Queries});
}

// s.result[size, kBf16Queries] = (keys or values)ᵀ · in[keys, kBf16Queries]. Uses the panel.
void AlongKeys(const Bf16Tiles& tiles, const AttentionHead& h, const Bf16Scratch& s,
               const float* in, int64_t keys) {
  tiles.pack_columns(in, kBf16Queries, keys, kBf16Queries, s.panel);
  Multiply(tiles, h.size, Strip::kSteps, kTileRows * s.length_pairs,
           {.a = s.by_size,
            .b = s.panel,
            .pairs = (keys + 1) / 2,
            .c = s.result,
            .ldc = kBf16Queries,
            .columns = kBf16Queries});
}

// out[keys, size] += a[keys, rows queries] · x[rows, size], where a was rounded in place. Uses the
// panel.
void AddAlongQueries(const Bf16Tiles& tiles, const AttentionHead& h, const Bf16Scratch& s,
                     const float* a, const float* x, int64_t x_stride, int64_t rows, int64_t keys,
                     float* out) {
  for (int64_t j = 0; j < h.size; j += kTileColumns) {
    const int64_t columns = std::min(kTileColumns, h.size - j);
    tiles.pack_columns(x + j, x_stride, rows, columns, s.panel);
    Multiply(tiles, keys, Strip::kShortRows, kTileRows * kShortRow,
             {.a = reinterpret_cast<const uint32_t*>(a),
              .b = s.panel,
              .pairs = (rows + 1) / 2,
              .add = true,
              .c = out + j,
              .ldc = h.stride,
              .columns = columns});
  }
}

void Bf16Scores(const Bf16Tiles& tiles, const AttentionHead& h, const Bf16Scratch& s, int64_t first,
                int64_t rows) {
  tiles.pack_transposed(h.q + first * h.stride, h.stride, h.size, rows, s.query);
  AlongSize(tiles, s, s.keys, s.query, first + rows, h.scale, s.p);
}

void Bf16Forward(const AttentionHead& h, const Bf16Tiles& tiles, float* space) {
  const Bf16Scratch s(h, space);
  PackKeys(tiles, h, h.k, s.keys);
  PackSizes(tiles, h, h.v, s.by_size);
  for (int64_t first = 0; first < h.length; first += kBf16Queries) {
    const int64_t rows = std::min<int64_t>(kBf16Queries, h.length - first), keys = first + rows;
    float largest[kBf16Queries], sum[kBf16Queries];
    Bf16Scores(tiles, h, s, first, rows);
    Exponentials<kBf16Queries>(s.p, first, keys, largest, sum);
    if (h.draw_mask != nullptr) MaskProbabilities<kBf16Queries>(h, first, rows, s.mask, s.p);
    AlongKeys(tiles, h, s, s.p, keys);
    DivideBySums<kBf16Queries>(h, first, rows, largest, sum, s.result);
    Transpose(s.result, kBf16Queries, h.size, rows, h.out + first * h.out_stride, h.out_stride,
              false);
  }
}

void Bf16Backward(const AttentionHead& h, const Bf16Tiles& tiles, float* space) {
  const Bf16Scratch s(h, space);
  PackKeys(tiles, h, h.k, s.keys);
  PackKeys(tiles, h, h.v, s.values);
  PackSizes(tiles, h, h.k, s.by_size);
  for (int64_t first = 0; first < h.length; first += kBf16Queries) {
    const int64_t rows = std::min<int64_t>(kBf16Queries, h.length - first), keys = first + rows;
    const float* dout = h.dout + first * h.out_stride;
    float lse[kBf16Queries] = {}, delta[kBf16Queries] = {};
    LogSumsAndDeltas(h, first, rows, lse, delta);
    Bf16Scores(tiles, h, s, first, rows);
    tiles.pack_transposed(dout, h.out_stride, h.size, rows, s.gradient);
    AlongSize(tiles, s, s.values, s.gradient, keys, 1, s.dp);
    if (h.draw_mask != nullptr) DrawMask<kBf16Queries>(h, first, rows, s.mask);
    ScoreGradients<kBf16Queries>(h, s.p, s.dp, s.mask, keys, lse, delta);
    ZeroBeyondDiagonal<kBf16Queries>(s.p, first, keys);
    ZeroBeyondDiagonal<kBf16Queries>(s.dp, first, keys);
    AlongKeys(tiles, h, s, s.dp, keys);
    Transpose(s.result, kBf16Queries, h.size, rows, h.dq + first * h.stride, h.stride, false);
    tiles.round_rows(s.p, keys);
    tiles.round_rows(s.dp, keys);
    AddAlongQueries(tiles, h, s, s.p, dout, h.out_stride, rows, keys, h.dv);
    AddAlongQueries(tiles, h, s, s.dp, h.q + first * h.stride, h.stride, rows, keys, h.dk);
  }
}

}  // namespace
}  // namespace headrace
