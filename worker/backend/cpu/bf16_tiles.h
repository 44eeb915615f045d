// What bf16 products are made of: tiles of 14 rows by 32 columns over packed strips. A pair is two
// neighbours in k rounded to bf16, the even one low, in 32 bits; what is missing at the ends is 0.
//
//   strip of b   kTileColumns columns, pair after pair of all of them
//   strip of a   kTileRows rows, as Strip says
//
// One set of functions multiplies by vdpbf16ps, one by fp32 with the same bits; all that is around
// them is the same code for both.
#pragma once

#include <cstdint>
#include <cstring>

namespace headrace {

inline constexpr int64_t kTileRows = 14, kTileColumns = 32;
inline constexpr int64_t kPanelDepth = 768;
// Pairs of bf16 from one row to the next: a little more than the depth, for rows a power of two
// apart would share a few lines of a cache.
inline constexpr int64_t kPanelRowStride = kPanelDepth / 2 + 16;
inline constexpr int64_t kShortRow = 32;  // numbers of a row rounded in place

enum class Strip {
  kPanelRows,  // row behind row, kPanelRowStride pairs apart
  kShortRows,  // row behind row, kShortRow pairs apart, as round_rows leaves them
  kSteps,      // pair after pair of all kTileRows rows
};
inline constexpr int kNumStrips = 3;

struct Bf16Tile {
  const uint32_t* a = nullptr;  // the strip
  const uint32_t* b = nullptr;
  int64_t pairs = 0;
  float alpha = 1;
  bool add = false;             // to c, else c is only written
  const float* bias = nullptr;  // added to each row where c is only written; null: none
  float* c = nullptr;
  int64_t ldc = 0;
  int64_t columns = 0;  // of kTileColumns that c has
  // Memory that will be read soon is asked for meanwhile, at most a line every two pairs.
  const char* ahead = nullptr;
  int64_t ahead_lines = 0;
};

// Of `depth` numbers in k, `width` rows or columns that there are; strips of b lie at kAlignment.
struct Bf16Tiles {
  using Pack = void (*)(const float* x, int64_t ld, int64_t depth, int64_t width, uint32_t* y);
  Pack pack_rows;             // a strip of a, kSteps: x[k · ld + i]
  Pack pack_rows_transposed;  // a strip of a, kSteps: x[i · ld + k]
  Pack pack_columns;          // a strip of b: x[k · ld + j]
  Pack pack_transposed;       // a strip of b: x[j · ld + k]
  // In place: each of `rows` rows of kShortRow floats becomes kShortRow / 2 pairs at its start.
  void (*round_rows)(float* x, int64_t rows);
  // c[rows, columns] = alpha · a · b (+ c, or + bias)
  void (*compute)(int64_t rows, Strip a, const Bf16Tile& tile);
};

// The functions of a kernel, as bf16_panels.h describes one.
template <typename Kernel>
constexpr Bf16Tiles TilesOf() {
  return {Kernel::PackRows,
          Kernel::PackRowsTransposed,
          Kernel::PackColumns,
          Kernel::PackTransposed,
          [](float* x, int64_t rows) {
            for (int64_t row = 0; row < rows; ++row, x += kShortRow) {
              alignas(64) uint32_t pairs[kShortRow / 2];
              Kernel::PackRow(x, kShortRow, pairs);
              std::memcpy(x, pairs, sizeof(pairs));
            }
          },
          Kernel::Compute};
}

}  // namespace headrace
