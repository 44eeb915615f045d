// bf16 products by AVX-512's vdpbf16ps: 16 lanes, two multiply-adds each. A tile of 14 rows by two
// vectors takes 28 of the 32 registers, so that each number loaded is used 14 times or twice.
#include <memory>

#include "worker/backend/cpu/bf16_panels.h"
#include "worker/backend/ops.h"

#if defined(__x86_64__)
// GCC 12's own intrinsics start from a register that they leave undefined on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <utility>
#endif

namespace headrace {
#if defined(__x86_64__)
namespace {

// Functions, not a file's option: what is inline in headers must stay runnable everywhere.
#define HEADRACE_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

// All of a loop whose length is known: its registers are an array's elements.
#if defined(__clang__)
#define HEADRACE_UNROLL _Pragma("unroll")
#else
#define HEADRACE_UNROLL _Pragma("GCC unroll 16")
#endif

static_assert(kTileRows == 14 && kTileColumns == 32);

// The even lanes from the lower half, the odd ones from the upper.
alignas(64) constexpr uint16_t kZip[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

// The first `count` of 16 lanes; all of them from 16 on.
HEADRACE_BF16 inline __mmask16 FirstLanes(int64_t count) {
  if (count >= 16) return 0xffff;
  return count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1u << count) - 1);
}

HEADRACE_BF16 inline __m512 LoadFirst(const float* x, int64_t count) {
  return _mm512_maskz_loadu_ps(FirstLanes(count), x);
}

// 16 pairs of 32 neighbours, of which there are `count`.
HEADRACE_BF16 inline __m512i Pairs(const float* x, int64_t count) {
  return (__m512i)_mm512_cvtne2ps_pbh(LoadFirst(x + 16, count - 16), LoadFirst(x, count));
}

// 16 pairs of one number of `even` and the one below it, of `odd` (null: 0).
HEADRACE_BF16 inline __m512i Zip(const float* even, const float* odd, int64_t count) {
  const __m512 upper = odd == nullptr ? _mm512_setzero_ps() : LoadFirst(odd, count);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kZip),
                                  (__m512i)_mm512_cvtne2ps_pbh(upper, LoadFirst(even, count)));
}

// Rows become columns, of 16 by 16 pairs.
HEADRACE_BF16 inline void Transpose16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

template <bool kWhole>
HEADRACE_BF16 inline __m512 Load(const float* x, __mmask16 mask) {
  return kWhole ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(mask, x);
}

// kWhole: c has all columns. A store under a mask takes longer than one without.
template <int kRows, bool kWhole>
HEADRACE_BF16 inline void StoreTile(const Bf16Tile& tile, __m512 (&sum)[kRows][2]) {
  const __mmask16 mask0 = FirstLanes(tile.columns), mask1 = FirstLanes(tile.columns - 16);
  __m512 bias0 = _mm512_setzero_ps(), bias1 = bias0;
  if (tile.bias != nullptr)
    bias0 = Load<kWhole>(tile.bias, mask0), bias1 = Load<kWhole>(tile.bias + 16, mask1);
  HEADRACE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    float* c = tile.c + i * tile.ldc;
    __m512 c0 = sum[i][0], c1 = sum[i][1];
    if (tile.alpha != 1) {
      const __m512 alpha = _mm512_set1_ps(tile.alpha);
      c0 = _mm512_mul_ps(c0, alpha), c1 = _mm512_mul_ps(c1, alpha);
    }
    if (tile.add) {
      c0 = _mm512_add_ps(c0, Load<kWhole>(c, mask0)),
      c1 = _mm512_add_ps(c1, Load<kWhole>(c + 16, mask1));
    } else if (tile.bias != nullptr) {
      c0 = _mm512_add_ps(c0, bias0), c1 = _mm512_add_ps(c1, bias1);
    }
    if (kWhole) {
      _mm512_storeu_ps(c, c0), _mm512_storeu_ps(c + 16, c1);
    } else {
      _mm512_mask_storeu_ps(c, mask0, c0), _mm512_mask_storeu_ps(c + 16, mask1, c1);
    }
  }
}

template <int kRows, Strip kStrip>
HEADRACE_BF16 void ComputeTile(const Bf16Tile& tile) {
  const uint32_t* a = tile.a;
  const uint32_t* b = tile.b;
  const int64_t pairs = tile.pairs, ahead_pairs = 2 * tile.ahead_lines;
  const char* const ahead = tile.ahead;
  __m512 sum[kRows][2];
  HEADRACE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    _mm_prefetch(reinterpret_cast<const char*>(tile.c + i * tile.ldc), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(tile.c + i * tile.ldc + 16), _MM_HINT_T0);
  }
  for (int64_t p = 0; p < pairs; ++p) {
    if (p < ahead_pairs) _mm_prefetch(ahead + 32 * p, _MM_HINT_T1);  // each line twice
    const __m512bh b0 = (__m512bh)_mm512_load_si512(b + p * kTileColumns);
    const __m512bh b1 = (__m512bh)_mm512_load_si512(b + p * kTileColumns + 16);
    HEADRACE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const uint32_t pair = kStrip == Strip::kSteps       ? a[p * kTileRows + i]
                            : kStrip == Strip::kShortRows ? a[i * kShortRow + p]
                                                          : a[i * kPanelRowStride + p];
      const __m512bh both = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], both, b0);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], both, b1);
    }
  }
  if (tile.columns == kTileColumns) return StoreTile<kRows, true>(tile, sum);
  StoreTile<kRows, false>(tile, sum);
}

using ComputeFunction = void (*)(const Bf16Tile&);
struct ComputeTable {
  ComputeFunction by_rows[kTileRows][kNumStrips];
};
template <int... kRows>
constexpr ComputeTable MakeTable(std::integer_sequence<int, kRows...>) {
  return {{{ComputeTile<kRows + 1, Strip::kPanelRows>, ComputeTile<kRows + 1, Strip::kShortRows>,
            ComputeTile<kRows + 1, Strip::kSteps>}...}};
}
constexpr ComputeTable kCompute = MakeTable(std::make_integer_sequence<int, kTileRows>());

// The last step of a strip or of a part of it. One before it may be stored whole: what it writes
// too much, the next one sets.
template <int64_t kStep>
HEADRACE_BF16 inline void StoreLast(uint32_t* y, __m512i pairs) {
  if (kStep >= 16) return _mm512_storeu_si512(y, pairs);
  _mm512_mask_storeu_epi32(y, FirstLanes(kStep), pairs);
}

// Pairs of 16 rows x[j · ld + k] or less, kStep apart, for each two k.
template <int64_t kStep, bool kAhead>
HEADRACE_BF16 void PackTransposed16(const float* x, int64_t ld, int64_t depth, int64_t width,
                                    uint32_t* y) {
  for (int64_t k = 0; k < depth; k += 32) {
    __m512i rows[16];
    for (int j = 0; j < 16; ++j) {
      rows[j] = j < width ? Pairs(x + j * ld + k, depth - k) : _mm512_setzero_si512();
      if (!kAhead) continue;  // the next 16 rows, which no processor expects there
      const char* ahead = reinterpret_cast<const char*>(x + (j + 16) * ld + k);
      _mm_prefetch(ahead, _MM_HINT_T1);
      _mm_prefetch(ahead + 64, _MM_HINT_T1);
    }
    Transpose16(rows);
    uint32_t* to = y + k / 2 * kStep;
    const int64_t pairs = std::min<int64_t>(16, (depth - k + 1) / 2);
    for (int p = 0; p + 1 < pairs; ++p) _mm512_storeu_si512(to + p * kStep, rows[p]);
    StoreLast<kStep>(to + (pairs - 1) * kStep, rows[pairs - 1]);
  }
}

struct Avx512Kernel {
  HEADRACE_BF16 static void PackRow(const float* x, int64_t count, uint32_t* y) {
    for (int64_t k = 0; k < count; k += 32) _mm512_storeu_si512(y + k / 2, Pairs(x + k, count - k));
  }

  HEADRACE_BF16 static void PackRows(const float* x, int64_t ld, int64_t depth, int64_t width,
                                     uint32_t* y) {
    for (; depth > 2; depth -= 2, x += 2 * ld, y += kTileRows) {
      _mm512_storeu_si512(y, Zip(x, x + ld, width));
    }
    StoreLast<kTileRows>(y, Zip(x, depth > 1 ? x + ld : nullptr, width));
  }

  HEADRACE_BF16 static void PackColumns(const float* x, int64_t ld, int64_t depth, int64_t width,
                                        uint32_t* y) {
    for (int64_t k = 0; k < depth; k += 2, x += 2 * ld, y += kTileColumns) {
      const float* odd = k + 1 < depth ? x + ld : nullptr;
      _mm512_store_si512(y, Zip(x, odd, width));
      _mm512_store_si512(y + 16, Zip(x + 16, odd == nullptr ? nullptr : odd + 16, width - 16));
    }
  }

  HEADRACE_BF16 static void PackTransposed(const float* x, int64_t ld, int64_t depth, int64_t width,
                                           uint32_t* y) {
    PackTransposed16<kTileColumns, true>(x, ld, depth, width, y);
    PackTransposed16<kTileColumns, true>(x + 16 * ld, ld, depth, width - 16, y + 16);
  }

  HEADRACE_BF16 static void PackRowsTransposed(const float* x, int64_t ld, int64_t depth,
                                               int64_t width, uint32_t* y) {
    PackTransposed16<kTileRows, false>(x, ld, depth, width, y);
  }

  static void Compute(int64_t rows, Strip strip, const Bf16Tile& tile) {
    kCompute.by_rows[rows - 1][static_cast<int>(strip)](tile);
  }
};

}  // namespace

bool CpuMultipliesBf16() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

std::unique_ptr<Products> CreateBf16Products(int threads, void* panels) {
  return std::make_unique<PanelProducts<Avx512Kernel>>(threads, panels);
}

#else

bool CpuMultipliesBf16() { return false; }

// Never called: CpuMultipliesBf16 says no.
std::unique_ptr<Products> CreateBf16Products(int, void*) { return nullptr; }

#endif
}  // namespace headrace
