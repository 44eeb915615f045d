// The walk of a bf16 product over panels, the same for every kind of tile.
//
// Inputs are rounded and packed a block at a time, so no tensor is kept twice and no caller knows
// bf16.
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
#include "worker/backend/cpu/bf16_tiles.h"
#include "worker/backend/cpu/kernel.h"
#include "worker/backend/cpu/products.h"

namespace headrace {

inline constexpr int64_t kPanelColumns = 32 * kTileColumns, kPanelRows = 16 * kTileRows;
// Rows of a tensor that lies k by k are packed this many at a time for all strips of a panel, so
// that memory is read from end to end and each line of it once.
inline constexpr int64_t kPackDepth = 8;
static_assert(kBf16PanelBytes ==
              2 * kPanelColumns * kPanelDepth + 4 * kPanelRows * kPanelRowStride);
static_assert(2 * kPanelColumns * kPanelDepth % kAlignment == 0);
static_assert(kBf16PanelBytes % kAlignment == 0);
static_assert(kPackDepth % 2 == 0);

// Some of a matrix that will be packed later, handed out line by line.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const float* first, int64_t rows, int64_t columns, int64_t ld)
      : row_(reinterpret_cast<const char*>(first)), rows_(rows), bytes_(4 * columns), ld_(4 * ld) {}

  // The next lines of one row, at most tile->pairs / 2; none when all were handed out.
  void Take(Bf16Tile* tile) {
    if (rows_ == 0) {
      tile->ahead_lines = 0;
      return;
    }
    tile->ahead = row_ + at_;
    tile->ahead_lines = std::min(tile->pairs / 2, (bytes_ - at_ + 63) / 64);
    at_ += 64 * tile->ahead_lines;
    if (at_ < bytes_) return;
    row_ += ld_, --rows_, at_ = 0;
  }

 private:
  const char* row_ = nullptr;
  int64_t rows_ = 0, bytes_ = 0, ld_ = 0, at_ = 0;
};

// `Kernel` is a struct of static functions:
//   PackRow(x, count, y)   ⌈count / 2⌉ pairs of one row, zeroes up to 16 pairs may follow
//   the others             as Bf16Tiles has them (bf16_tiles.h)
template <typename Kernel>
class PanelProducts final : public Products {
 public:
  PanelProducts(int threads, void* panels)
      : threads_(threads), panels_(static_cast<uint32_t*>(panels)) {}

  const Bf16Tiles* bf16_tiles() const override {
    static constexpr Bf16Tiles kTiles = TilesOf<Kernel>();
    return &kTiles;
  }

  void Multiply(const Product& p) const override {
    if (p.m == 0 || p.n == 0 || p.k == 0) return;
    if (p.n >= p.m) {
      ParallelRanges(threads_, p.n, kTileColumns, [&](int64_t begin, int64_t end) {
        Product part = p;
        part.n = end - begin;
        part.b += begin * (p.tb == Transpose::kYes ? p.ldb : 1);
        part.c += begin;
        if (p.bias != nullptr) part.bias += begin;
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
        Ahead next_b = k + kPanelDepth < p.k ? AheadOfB(p, j, k + kPanelDepth)
                                             : AheadOfB(p, j + kPanelColumns, 0);
        for (int64_t i = 0; i < p.m; i += kPanelRows) {
          PackA(p, i, k, a);
          Ahead next_a = AheadOfA(p, i + kPanelRows, k);
          MultiplyPanels(p, i, j, k, a, b, &next_a, &next_b);
        }
      }
    }
  }

  // What PackB would read; nothing beyond the matrix.
  static Ahead AheadOfB(const Product& p, int64_t j0, int64_t k0) {
    if (j0 >= p.n) return {};
    const int64_t depth = std::min(kPanelDepth, p.k - k0);
    const int64_t columns = std::min(kPanelColumns, p.n - j0);
    if (p.tb == Transpose::kYes) return {p.b + j0 * p.ldb + k0, columns, depth, p.ldb};
    return {p.b + k0 * p.ldb + j0, depth, columns, p.ldb};
  }

  static Ahead AheadOfA(const Product& p, int64_t i0, int64_t k0) {
    if (i0 >= p.m) return {};
    const int64_t depth = std::min(kPanelDepth, p.k - k0), rows = std::min(kPanelRows, p.m - i0);
    if (p.ta == Transpose::kYes) return {p.a + k0 * p.lda + i0, depth, rows, p.lda};
    return {p.a + i0 * p.lda + k0, rows, depth, p.lda};
  }

  static void PackB(const Product& p, int64_t j0, int64_t k0, uint32_t* b) {
    const int64_t depth = std::min(kPanelDepth, p.k - k0);
    const int64_t columns = std::min(kPanelColumns, p.n - j0);
    const auto strip = [=](int64_t j) { return b + j * (kPanelDepth / 2); };
    if (p.tb == Transpose::kYes) {
      for (int64_t j = 0; j < columns; j += kTileColumns) {
        Kernel::PackTransposed(p.b + (j0 + j) * p.ldb + k0, p.ldb, depth,
                               std::min(kTileColumns, columns - j), strip(j));
      }
      return;
    }
    for (int64_t k = 0; k < depth; k += kPackDepth) {
      const float* from = p.b + (k0 + k) * p.ldb + j0;
      for (int64_t j = 0; j < columns; j += kTileColumns) {
        Kernel::PackColumns(from + j, p.ldb, std::min(kPackDepth, depth - k),
                            std::min(kTileColumns, columns - j), strip(j) + k / 2 * kTileColumns);
      }
    }
  }

  static void PackA(const Product& p, int64_t i0, int64_t k0, uint32_t* a) {
    const int64_t depth = std::min(kPanelDepth, p.k - k0), rows = std::min(kPanelRows, p.m - i0);
    if (p.ta == Transpose::kNo) {
      for (int64_t i = 0; i < rows; ++i) {
        Kernel::PackRow(p.a + (i0 + i) * p.lda + k0, depth, a + i * kPanelRowStride);
      }
      return;
    }
    for (int64_t k = 0; k < depth; k += kPackDepth) {
      const float* from = p.a + (k0 + k) * p.lda + i0;
      for (int64_t i = 0; i < rows; i += kTileRows) {
        Kernel::PackRows(from + i, p.lda, std::min(kPackDepth, depth - k),
                         std::min(kTileRows, rows - i),
                         a + i * kPanelRowStride + k / 2 * kTileRows);
      }
    }
  }

  static void MultiplyPanels(const Product& p, int64_t i0, int64_t j0, int64_t k0,
                             const uint32_t* a, const uint32_t* b, Ahead* next_a, Ahead* next_b) {
    const int64_t rows_end = std::min(p.m, i0 + kPanelRows);
    const int64_t columns_end = std::min(p.n, j0 + kPanelColumns);
    Bf16Tile tile;
    tile.pairs = (std::min(kPanelDepth, p.k - k0) + 1) / 2;
    tile.alpha = p.alpha;
    tile.add = p.beta != 0 || k0 > 0;
    tile.ldc = p.ldc;
    const Strip strip = p.ta == Transpose::kYes ? Strip::kSteps : Strip::kPanelRows;
    for (int64_t j = j0; j < columns_end; j += kTileColumns) {
      tile.b = b + (j - j0) * (kPanelDepth / 2);
      tile.columns = std::min(kTileColumns, columns_end - j);
      tile.bias = p.bias != nullptr ? p.bias + j : nullptr;
      for (int64_t i = i0; i < rows_end; i += kTileRows) {
        tile.a = a + (i - i0) * kPanelRowStride;
        tile.c = p.c + i * p.ldc + j;
        next_a->Take(&tile);
        if (tile.ahead_lines == 0) next_b->Take(&tile);
        Kernel::Compute(std::min(kTileRows, rows_end - i), strip, tile);
      }
    }
  }

  const int threads_;
  uint32_t* const panels_;
};

}  // namespace headrace
