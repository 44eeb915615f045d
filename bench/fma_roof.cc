#include "bench/fma_roof.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <ctime>

namespace headrace {

#if defined(__x86_64__)
namespace {

constexpr int kRounds = 1 << 22;
constexpr int kChains = 12;  // more than an FMA's latency times two a cycle

__attribute__((target("avx2,fma"))) float Fma256(float start) {
  __m256 a[kChains];  // of different numbers, or a compiler may make them one
  for (int i = 0; i < kChains; ++i) a[i] = _mm256_set1_ps(1.0f + start + i);
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m256& v : a) v = _mm256_fmadd_ps(v, x, y);
  }
  __m256 sum = a[0];
  for (__m256 v : a) sum = _mm256_add_ps(sum, v);
  return _mm256_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) float Fma512(float start) {
  __m512 a[kChains];
  for (int i = 0; i < kChains; ++i) a[i] = _mm512_set1_ps(1.0f + start + i);
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m512& v : a) v = _mm512_fmadd_ps(v, x, y);
  }
  __m512 sum = a[0];
  for (__m512 v : a) sum = _mm512_add_ps(sum, v);
  return _mm512_cvtss_f32(sum);
}

}  // namespace

double FmaRoof(int attempts) {
  const bool wide = __builtin_cpu_supports("avx512f");
  if (!wide && !__builtin_cpu_supports("fma")) return 0;
  double best = 0;
  volatile float kept = 0;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const std::clock_t start = std::clock();
    kept = wide ? Fma512(kept) : Fma256(kept);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    best = std::max(best, 2.0 * kChains * (wide ? 16 : 8) * kRounds / seconds);
  }
  return best;
}
#else
double FmaRoof(int) { return 0; }
#endif

}  // namespace headrace
