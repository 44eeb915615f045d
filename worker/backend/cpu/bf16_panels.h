// The walk of a bf16 product over panels, the same for every kind of tile.
//
// Inputs are rounded and packed a block at a time, so no tensor is kept twice and no caller knows
// bf16. A pair is two neighbours in k, even one low, in 32 bits; what is missing at the ends is 0.
//
//                  kPanelColumns                     b's panel: for each strip of kTileColumns
//              +------+------+--          columns, pair after pair of all of them
//   kPanelDepth|strip |strip | …
//              +------+------+--
//   +----------+  +------+------+--       a's panel: for each strip of kTileRows rows, either its
//   | strip    |  | tile | tile | …       rows one behind the other, kPanelRowStride pairs apart
//   +----------+  +------+------+--       (a lies row by row), or pair after pair of all of them
//   | strip    |  | tile | tile | …       (a lies transposed)
//   +----------+  +------+------+--
//    kPanelRows
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "plan/alignment.h"
#include "plan/precision.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/products.h"

namespace headrace {

inline constexpr int64_t kTileRows = 14, kTileColumns = 32;
inline constexpr int64_t kPanelDepth = 768, kPanelColumns = 32 * kTileColumns;
inline constexpr int64_t kPanelRows = 16 * kTileRows;
// Pairs of bf16 from one row to the next: a little more than the depth, for rows a power of two
// apart would share a few lines of a cache.
inline constexpr int64_t kPanelRowStride = kPanelDepth / 2 + 16;
static_assert(kBf16PanelBytes ==
              2 * kPanelColumns * kPanelDepth + 4 * kPanelRows * kPanelRowStride);
static_assert(2 * kPanelColumns * kPanelDepth % kAlignment == 0);
static_assert(kBf16PanelBytes % kAlignment == 0);

struct Tile {
  const uint32_t* a = nullptr;  // the strip
  const uint32_t* b = nullptr;
  int64_t pairs = 0;
  float alpha = 1;
  bool add = false;  // to c, else c is only written
  float* c = nullptr;
  int64_t ldc = 0;
  int64_t columns = 0;  // of kTileColumns that c has
};

// `Kernel` is a struct of static functions:
//   PackRow(x, count, y)                   ⌈count / 2⌉ pairs of one row, more zeroes may follow
//   PackRows(x, ld, depth, width, y)       a strip of a: x[k · ld + i], kTileRows pairs a step
//   PackColumns(x, ld, depth, width, y)    a strip of b: x[k · ld + j], kTileColumns pairs a step
//   PackTransposed(x, ld, depth, width, y) a strip of b: x[j · ld + k]
//   Compute(rows, transposed, tile)        c[rows, columns] = alpha · a · b (+ c)
template <typename Kernel>
class PanelProducts final : public Products {
 public:
  PanelProducts(int threads, void* panels)
      : threads_(threads), panels_(static_cast<uint32_t*>(panels)) {}

  void Multiply(const Product& p) const override {
    if (p.m == 0 || p.n == 0 || p.k == 0) return;
    if (p.n >= p.m) {
      ParallelRanges(threads_, p.n, kTileColumns, [&](int64_t begin, int64_t end) {
        Product part = p;
        part.n = end - begin;
        part.b += begin * (p.tb == Transpose::kYes ? p.ldb : 1);
        part.c += begin;
        MultiplyPart(part);
      });
    } else {
      ParallelRanges(threads_, p.m, kTileRows, [&](int64_t begin, int64_t end) {
        Product part = p;
        part.m = end - begin;
        part.a += begin * (p.ta == Transpose::kYes ? 1 : p.lda);
        part.c += begin * p.ldc;
        MultiplyPart(part);
      });
    }
  }

 private:
  void MultiplyPart(const Product& p) const {
    uint32_t* b = panels_ + omp_get_thread_num() * (kBf16PanelBytes / 4);
    uint32_t* a = b + kPanelColumns * (kPanelDepth / 2);
    for (int64_t j = 0; j < p.n; j += kPanelColumns) {
      for (int64_t k = 0; k < p.k; k += kPanelDepth) {
        PackB(p, j, k, b);
        for (int64_t i = 0; i < p.m; i += kPanelRows) {
          PackA(p, i, k, a);
          MultiplyPanels(p, i, j, k, a, b);
        }
      }
    }
  }

  static void PackB(const Product& p, int64_t j0, int64_t k0, uint32_t* b) {
    const int64_t depth = std::min(kPanelDepth, p.k - k0), end = std::min(p.n, j0 + kPanelColumns);
    for (int64_t j = j0; j < end; j += kTileColumns, b += kTileColumns * (kPanelDepth / 2)) {
      const int64_t width = std::min(kTileColumns, end - j);
      if (p.tb == Transpose::kYes) {
        Kernel::PackTransposed(p.b + j * p.ldb + k0, p.ldb, depth, width, b);
      } else {
        Kernel::PackColumns(p.b + k0 * p.ldb + j, p.ldb, depth, width, b);
      }
    }
  }

  static void PackA(const Product& p, int64_t i0, int64_t k0, uint32_t* a) {
    const int64_t depth = std::min(kPanelDepth, p.k - k0), end = std::min(p.m, i0 + kPanelRows);
    for (int64_t i = i0; i < end; i += kTileRows, a += kTileRows * kPanelRowStride) {
      const int64_t width = std::min(kTileRows, end - i);
      if (p.ta == Transpose::kYes) {
        Kernel::PackRows(p.a + k0 * p.lda + i, p.lda, depth, width, a);
        continue;
      }
      for (int64_t row = 0; row < width; ++row) {
        Kernel::PackRow(p.a + (i + row) * p.lda + k0, depth, a + row * kPanelRowStride);
      }
    }
  }

  static void MultiplyPanels(const Product& p, int64_t i0, int64_t j0, int64_t k0,
                             const uint32_t* a, const uint32_t* b) {
    const int64_t rows_end = std::min(p.m, i0 + kPanelRows);
    const int64_t columns_end = std::min(p.n, j0 + kPanelColumns);
    Tile tile;
    tile.pairs = (std::min(kPanelDepth, p.k - k0) + 1) / 2;
    tile.alpha = p.alpha;
    tile.add = p.beta != 0 || k0 > 0;
    tile.ldc = p.ldc;
    for (int64_t j = j0; j < columns_end; j += kTileColumns) {
      tile.b = b + (j - j0) * (kPanelDepth / 2);
      tile.columns = std::min(kTileColumns, columns_end - j);
      for (int64_t i = i0; i < rows_end; i += kTileRows) {
        tile.a = a + (i - i0) * kPanelRowStride;
        tile.c = p.c + i * p.ldc + j;
        Kernel::Compute(std::min(kTileRows, rows_end - i), p.ta == Transpose::kYes, tile);
      }
    }
  }

  const int threads_;
  uint32_t* const panels_;
};

}  // namespace headrace
