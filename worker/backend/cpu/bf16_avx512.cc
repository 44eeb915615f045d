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

template <int kRows, bool kTransposed>
HEADRACE_BF16 void ComputeTile(const Tile& tile) {
  const __mmask16 mask0 = FirstLanes(tile.columns), mask1 = FirstLanes(tile.columns - 16);
  const uint32_t* a = tile.a;
  const uint32_t* b = tile.b;
  const int64_t pairs = tile.pairs;
  __m512 sum[kRows][2];
  HEADRACE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    _mm_prefetch(reinterpret_cast<const char*>(tile.c + i * tile.ldc), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(tile.c + i * tile.ldc + 16), _MM_HINT_T0);
  }
  for (int64_t p = 0; p < pairs; ++p) {
    const __m512bh b0 = (__m512bh)_mm512_load_si512(b + p * kTileColumns);
    const __m512bh b1 = (__m512bh)_mm512_load_si512(b + p * kTileColumns + 16);
    HEADRACE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const uint32_t pair = kTransposed ? a[p * kTileRows + i] : a[i * kPanelRowStride + p];
      const __m512bh both = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], both, b0);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], both, b1);
    }
  }
  const __m512 alpha = _mm512_set1_ps(tile.alpha);
  HEADRACE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    float* c = tile.c + i * tile.ldc;
    __m512 c0 = _mm512_mul_ps(sum[i][0], alpha), c1 = _mm512_mul_ps(sum[i][1], alpha);
    if (tile.add) {
      c0 = _mm512_add_ps(c0, _mm512_maskz_loadu_ps(mask0, c));
      c1 = _mm512_add_ps(c1, _mm512_maskz_loadu_ps(mask1, c + 16));
    }
    _mm512_mask_storeu_ps(c, mask0, c0);
    _mm512_mask_storeu_ps(c + 16, mask1, c1);
  }
}

using ComputeFunction = void (*)(const Tile&);
struct ComputeTable {
  ComputeFunction by_rows[kTileRows][2];
};
template <int... kRows>
constexpr ComputeTable MakeTable(std::integer_sequence<int, kRows...>) {
  return {{{ComputeTile<kRows + 1, false>, ComputeTile<kRows + 1, true>}...}};
}
constexpr ComputeTable kCompute = MakeTable(std::make_integer_sequence<int, kTileRows>());

struct Avx512Kernel {
  HEADRACE_BF16 static void PackRow(const float* x, int64_t count, uint32_t* y) {
    for (int64_t k = 0; k < count; k += 32) _mm512_storeu_si512(y + k / 2, Pairs(x + k, count - k));
  }

  HEADRACE_BF16 static void PackRows(const float* x, int64_t ld, int64_t depth, int64_t width,
                                     uint32_t* y) {
    for (int64_t k = 0; k < depth; k += 2, x += 2 * ld, y += kTileRows) {
      const __m512i pairs = Zip(x, k + 1 < depth ? x + ld : nullptr, width);
      _mm512_mask_storeu_epi32(y, FirstLanes(kTileRows), pairs);
    }
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
    for (int64_t half = 0; half < kTileColumns; half += 16) {
      for (int64_t k = 0; k < depth; k += 32) {
        __m512i rows[16];
        for (int j = 0; j < 16; ++j) {
          rows[j] =
              half + j < width ? Pairs(x + (half + j) * ld + k, depth - k) : _mm512_setzero_si512();
        }
        Transpose16(rows);
        uint32_t* to = y + k / 2 * kTileColumns + half;
        const int64_t pairs = std::min<int64_t>(16, (depth - k + 1) / 2);
        for (int p = 0; p < pairs; ++p) _mm512_store_si512(to + p * kTileColumns, rows[p]);
      }
    }
  }

  static void Compute(int64_t rows, bool transposed, const Tile& tile) {
    kCompute.by_rows[rows - 1][transposed ? 1 : 0](tile);
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
