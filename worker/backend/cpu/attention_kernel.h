// Attention of one head with register tiles over packed operands, for vectors of any width.
// Included by one file for each instruction set (attention_avx512.cc, …), which defines
// HEADRACE_WIDTH, floats of a vector, and HEADRACE_ROWS, rows of a tile. All of it has internal
// linkage: code for one processor must not be what another runs.
//
// Scores lie transposed, a panel of kQueries queries side by side in the lanes and keys downwards,
// so that softmax needs no sum across lanes and both products read the panel as it lies:
//
//             kQueries                    Sᵀ = K Qᵀ      keys × queries
//   keys   +-----------+                  Oᵀ = Vᵀ Pᵀ     size × queries
//          | Sᵀ → Pᵀ   |                  dPᵀ = V dOᵀ,  dQᵀ = Kᵀ dSᵀ
//          |     ..::::|  right of the    dV += Pᵀ dO,  dK += dSᵀ Q
//          +--.::------+  diagonal: 0
//
// Every element is one chain of fused multiply-adds in ascending order, whatever the tile.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "worker/backend/cpu/attention_head.h"
#include "worker/backend/cpu/attention_softmax.h"

// All of a loop whose length is known: its registers are an array's elements.
#if defined(__clang__)
#define HEADRACE_UNROLL _Pragma("unroll")
#else
#define HEADRACE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace headrace {
namespace {

constexpr int kWidth = HEADRACE_WIDTH;
constexpr int kRows = HEADRACE_ROWS;
constexpr int kQueries = 2 * kWidth;  // of a panel
static_assert(kRows <= kWidth);       // Transpose leaves slack behind one vector only
static_assert(kRows <= kAttentionTileRows && kQueries <= kAttentionPanel);

typedef float Vector __attribute__((vector_size(kWidth * 4)));

inline Vector Load(const float* p) {
  Vector v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline void Store(float* p, Vector v) { std::memcpy(p, &v, sizeof(v)); }

// c[kTileRows, kVectors · kWidth] = (add: c +) Σ_k a(r, k) · b[k · b_step + …], with
// a(r, k) = a[r · kRowStep + k · a_step].
template <int kTileRows, int kVectors, int kRowStep>
void Tile(int64_t num_k, const float* a, int64_t a_step, const float* b, int64_t b_step, float* c,
          int64_t c_stride, bool add) {
  Vector sum[kTileRows][kVectors];
  HEADRACE_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    HEADRACE_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Vector{};
  }
  for (int64_t k = 0; k < num_k; ++k) {
    Vector in[kVectors];
    HEADRACE_UNROLL
    for (int v = 0; v < kVectors; ++v) in[v] = Load(b + v * kWidth);
    HEADRACE_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const float x = a[r * kRowStep];
      HEADRACE_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] += x * in[v];
    }
    a += a_step;
    b += b_step;
  }
  HEADRACE_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    HEADRACE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float* at = c + r * c_stride + v * kWidth;
      Store(at, add ? Load(at) + sum[r][v] : sum[r][v]);
    }
  }
}

using TileFunction = void (*)(int64_t, const float*, int64_t, const float*, int64_t, float*,
                              int64_t, bool);

template <int kVectors, int kRowStep, size_t... kTileRows>
TileFunction TileOf(int64_t rows, std::index_sequence<kTileRows...>) {
  static constexpr TileFunction kTiles[] = {Tile<kTileRows + 1, kVectors, kRowStep>...};
  return kTiles[rows - 1];
}

// The same for c[rows, kVectors · kWidth] of any number of rows. a_panel: floats from one tile of
// kRows rows to the next.
template <int kVectors, int kRowStep>
void Tiles(int64_t rows, int64_t num_k, const float* a, int64_t a_step, int64_t a_panel,
           const float* b, int64_t b_step, float* c, int64_t c_stride, bool add) {
  for (int64_t r = 0; r < rows; r += kRows) {
    const auto tile = TileOf<kVectors, kRowStep>(std::min<int64_t>(kRows, rows - r),
                                                 std::make_index_sequence<kRows>());
    tile(num_k, a + r / kRows * a_panel, a_step, b, b_step, c + r * c_stride, c_stride, add);
  }
}

// c[rows, columns] += …, columns of any number: a(r, k) = a[r · kQueries + k], b[k, columns]
// compact.
void AddProduct(int64_t rows, int64_t columns, int64_t num_k, const float* a, const float* b,
                float* c, int64_t c_stride) {
  int64_t j = 0;
  for (; j + 2 * kWidth <= columns; j += 2 * kWidth) {
    Tiles<2, kQueries>(rows, num_k, a, 1, kRows * kQueries, b + j, columns, c + j, c_stride, true);
  }
  for (; j + kWidth <= columns; j += kWidth) {
    Tiles<1, kQueries>(rows, num_k, a, 1, kRows * kQueries, b + j, columns, c + j, c_stride, true);
  }
  for (; j < columns; ++j) {
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (int64_t k = 0; k < num_k; ++k)
        sum = std::fma(a[r * kQueries + k], b[k * columns + j], sum);
      c[r * c_stride + j] += sum;
    }
  }
}

template <size_t... kLane>
void Zip(Vector a, Vector b, Vector* low, Vector* high, std::index_sequence<kLane...>) {
  *low = __builtin_shufflevector(a, b, (kLane / 2 + kLane % 2 * kWidth)...);
  *high = __builtin_shufflevector(a, b, (kWidth / 2 + kLane / 2 + kLane % 2 * kWidth)...);
}

// rows[i][j] → rows[j][i]: log2(kWidth) times, row i and row i + kWidth / 2 zipped.
inline void TransposeSquare(Vector* rows) {
  Vector other[kWidth];
  HEADRACE_UNROLL
  for (int step = 1; step < kWidth; step *= 2) {
    HEADRACE_UNROLL
    for (int i = 0; i < kWidth / 2; ++i) {
      Zip(rows[i], rows[i + kWidth / 2], &other[2 * i], &other[2 * i + 1],
          std::make_index_sequence<kWidth>());
    }
    HEADRACE_UNROLL
    for (int i = 0; i < kWidth; ++i) rows[i] = other[i];
  }
}

// out[j · out_stride + i] = in[i · in_stride + j] for i < rows, j < columns. slack: what lies
// behind `rows` floats of a row of out may be overwritten; its rows are written in ascending order.
void Transpose(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
               int64_t out_stride, bool slack) {
  for (int64_t i = 0; i < rows; i += kWidth) {
    const int64_t some = std::min<int64_t>(kWidth, rows - i);
    int64_t j = 0;
    for (; j + kWidth <= columns && (slack || some == kWidth); j += kWidth) {
      Vector square[kWidth];
      for (int64_t r = 0; r < kWidth; ++r) {
        square[r] = r < some ? Load(in + (i + r) * in_stride + j) : Vector{};
      }
      TransposeSquare(square);
      for (int64_t r = 0; r < kWidth; ++r) Store(out + (j + r) * out_stride + i, square[r]);
    }
    for (; j < columns; ++j) {
      for (int64_t r = 0; r < some; ++r) out[j * out_stride + i + r] = in[(i + r) * in_stride + j];
    }
  }
}

// Panels of kRows rows of x[rows, columns], each transposed: out[panel][column][row].
void PackTransposed(const float* x, int64_t stride, int64_t rows, int64_t columns, float* out) {
  for (int64_t r = 0; r < rows; r += kRows) {
    Transpose(x + r * stride, stride, std::min<int64_t>(kRows, rows - r), columns, out, kRows,
              true);
    out += kRows * columns;
  }
}

void PackRows(const float* x, int64_t stride, int64_t rows, int64_t columns, float* out) {
  for (int64_t r = 0; r < rows; ++r) std::memcpy(out + r * columns, x + r * stride, columns * 4);
}

// The head's rows [first, first + rows) of x as a panel: out[column][query], lanes without a query
// 0.
void PackPanel(const float* x, int64_t stride, int64_t rows, int64_t columns, float* out) {
  if (rows < kQueries) std::memset(out, 0, columns * kQueries * sizeof(float));
  Transpose(x, stride, rows, columns, out, kQueries, false);
}

void ScalePanel(float* panel, int64_t count, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) panel[i] *= factor;
}

// The pieces of a thread's workspace.
struct Scratch {
  Scratch(const AttentionHead& h, float* space) {
    const int64_t packed = (h.length + kAttentionTileRows) * h.size + kWidth;
    const int64_t scores = h.length * kQueries;
    const int64_t panel = h.size * kQueries;
    const auto take = [&space](int64_t floats) {
      float* piece = space;
      space += (floats + 15) / 16 * 16;
      return piece;
    };
    keys = take(packed), values = take(packed), compact = take(h.length * h.size);
    p = take(scores), dp = take(scores), mask = take(scores);
    query = take(panel), gradient = take(panel), result = take(panel);
    query_rows = take(panel), gradient_rows = take(panel);
  }

  float *keys, *values /* transposed in panels */, *compact /* rows */, *p, *dp, *mask;
  float *query, *gradient, *result /* [size][query] */, *query_rows, *gradient_rows;
};

void Scores(const AttentionHead& h, const Scratch& s, int64_t first, int64_t rows) {
  PackPanel(h.q + first * h.stride, h.stride, rows, h.size, s.query);
  ScalePanel(s.query, h.size * kQueries, h.scale);
  Tiles<2, 1>(first + rows, h.size, s.keys, kRows, kRows * h.size, s.query, kQueries, s.p, kQueries,
              false);
}

void Forward(const AttentionHead& h, float* space) {
  const Scratch s(h, space);
  PackTransposed(h.k, h.stride, h.length, h.size, s.keys);
  PackRows(h.v, h.stride, h.length, h.size, s.compact);
  for (int64_t first = 0; first < h.length; first += kQueries) {
    const int64_t rows = std::min<int64_t>(kQueries, h.length - first), keys = first + rows;
    float largest[kQueries], sum[kQueries];
    Scores(h, s, first, rows);
    Exponentials<kQueries>(s.p, first, keys, largest, sum);
    if (h.draw_mask != nullptr) MaskProbabilities<kQueries>(h, first, rows, s.mask, s.p);
    Tiles<2, 1>(h.size, keys, s.compact, h.size, kRows, s.p, kQueries, s.result, kQueries, false);
    DivideBySums<kQueries>(h, first, rows, largest, sum, s.result);
    Transpose(s.result, kQueries, h.size, rows, h.out + first * h.out_stride, h.out_stride, false);
  }
}

void Backward(const AttentionHead& h, float* space) {
  const Scratch s(h, space);
  PackTransposed(h.k, h.stride, h.length, h.size, s.keys);
  PackTransposed(h.v, h.stride, h.length, h.size, s.values);
  PackRows(h.k, h.stride, h.length, h.size, s.compact);
  for (int64_t first = 0; first < h.length; first += kQueries) {
    const int64_t rows = std::min<int64_t>(kQueries, h.length - first), keys = first + rows;
    const float* dout = h.dout + first * h.out_stride;
    float lse[kQueries] = {}, delta[kQueries] = {};
    LogSumsAndDeltas(h, first, rows, lse, delta);
    Scores(h, s, first, rows);
    PackPanel(dout, h.out_stride, rows, h.size, s.gradient);
    Tiles<2, 1>(keys, h.size, s.values, kRows, kRows * h.size, s.gradient, kQueries, s.dp, kQueries,
                false);
    if (h.draw_mask != nullptr) DrawMask<kQueries>(h, first, rows, s.mask);
    ScoreGradients<kQueries>(h, s.p, s.dp, s.mask, keys, lse, delta);
    ZeroBeyondDiagonal<kQueries>(s.p, first, keys);
    ZeroBeyondDiagonal<kQueries>(s.dp, first, keys);
    PackRows(dout, h.out_stride, rows, h.size, s.gradient_rows);
    PackRows(h.q + first * h.stride, h.stride, rows, h.size, s.query_rows);
    AddProduct(keys, h.size, rows, s.p, s.gradient_rows, h.dv, h.stride);
    AddProduct(keys, h.size, rows, s.dp, s.query_rows, h.dk, h.stride);
    Tiles<2, 1>(h.size, keys, s.compact, h.size, kRows, s.dp, kQueries, s.result, kQueries, false);
    Transpose(s.result, kQueries, h.size, rows, h.dq + first * h.stride, h.stride, false);
  }
}

}  // namespace
}  // namespace headrace
