// bf16 products on any processor: numbers rounded to bf16, multiplied in fp32. A product of two of
// them is exact in fp32, so only the order of the additions matters, which is written here: the
// same bits with fused multiply-adds and without, with vectors of any width.
#include <algorithm>
#include <bit>
#include <memory>

#include "worker/backend/cpu/bf16.h"
#include "worker/backend/cpu/bf16_panels.h"

namespace headrace {
namespace {

HEADRACE_INLINE uint32_t Pair(float even, float odd) {
  return static_cast<uint32_t>(ToBf16(odd)) << 16 | ToBf16(even);
}
HEADRACE_INLINE float Even(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
HEADRACE_INLINE float Odd(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

// x[k · ld + i] for i < width, `step` pairs for two k.
HEADRACE_KERNEL void PackSteps(const float* x, int64_t ld, int64_t depth, int64_t width,
                               int64_t step, uint32_t* y) {
  for (int64_t k = 0; k < depth; k += 2, x += 2 * ld, y += step) {
    std::fill(y + width, y + step, 0u);
    if (k + 1 < depth) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) y[i] = Pair(x[i], x[i + ld]);
    } else {
      for (int64_t i = 0; i < width; ++i) y[i] = Pair(x[i], 0.0f);
    }
  }
}

HEADRACE_KERNEL void ComputeTile(const Bf16Tile& tile, int64_t rows, int64_t row_stride,
                                 int64_t pair_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    const uint32_t* a = tile.a + i * row_stride;
    float sum[kTileColumns] = {};
    for (int64_t p = 0; p < tile.pairs; ++p) {
      const float odd = Odd(a[p * pair_stride]), even = Even(a[p * pair_stride]);
      const uint32_t* b = tile.b + p * kTileColumns;
#pragma omp simd
      for (int64_t j = 0; j < kTileColumns; ++j) {
        const float with_odd = sum[j] + odd * Odd(b[j]);
        sum[j] = with_odd + even * Even(b[j]);
      }
    }
    float* c = tile.c + i * tile.ldc;
    for (int64_t j = 0; j < tile.columns; ++j) {
      const float scaled = tile.alpha * sum[j];
      c[j] = tile.add ? c[j] + scaled : tile.bias != nullptr ? scaled + tile.bias[j] : scaled;
    }
  }
}

// x[i · ld + k] for i < width, `step` pairs for two k.
HEADRACE_KERNEL void PackTransposedSteps(const float* x, int64_t ld, int64_t depth, int64_t width,
                                         int64_t step, uint32_t* y) {
  for (int64_t k = 0; k < depth; k += 2, y += step) {
    for (int64_t i = 0; i < step; ++i) {
      const float* at = x + i * ld + k;
      y[i] = i < width ? Pair(at[0], k + 1 < depth ? at[1] : 0.0f) : 0u;
    }
  }
}

struct PortableKernel {
  static void PackRow(const float* x, int64_t count, uint32_t* y) {
    for (int64_t k = 0; k + 1 < count; k += 2) y[k / 2] = Pair(x[k], x[k + 1]);
    if (count % 2 != 0) y[count / 2] = Pair(x[count - 1], 0.0f);
  }
  static void PackRows(const float* x, int64_t ld, int64_t depth, int64_t width, uint32_t* y) {
    PackSteps(x, ld, depth, width, kTileRows, y);
  }
  static void PackColumns(const float* x, int64_t ld, int64_t depth, int64_t width, uint32_t* y) {
    PackSteps(x, ld, depth, width, kTileColumns, y);
  }
  static void PackTransposed(const float* x, int64_t ld, int64_t depth, int64_t width,
                             uint32_t* y) {
    PackTransposedSteps(x, ld, depth, width, kTileColumns, y);
  }
  static void PackRowsTransposed(const float* x, int64_t ld, int64_t depth, int64_t width,
                                 uint32_t* y) {
    PackTransposedSteps(x, ld, depth, width, kTileRows, y);
  }
  static void Compute(int64_t rows, Strip strip, const Bf16Tile& tile) {
    switch (strip) {
      case Strip::kPanelRows:
        return ComputeTile(tile, rows, kPanelRowStride, 1);
      case Strip::kShortRows:
        return ComputeTile(tile, rows, kShortRow, 1);
      case Strip::kSteps:
        return ComputeTile(tile, rows, 1, kTileRows);
    }
  }
};

}  // namespace

std::unique_ptr<Products> CreateEmulatedBf16Products(int threads, void* panels) {
  return std::make_unique<PanelProducts<PortableKernel>>(threads, panels);
}

}  // namespace headrace
