#include "worker/backend/cpu/measure.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "worker/backend/cpu/gemm.h"

namespace headrace {

double MeasureFlops(int threads) {
  using Seconds = std::chrono::duration<double>;
  using Timer = std::chrono::steady_clock;
  constexpr int64_t kSize = 384;
  constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  constexpr double kBudgetSeconds = 0.2;
  constexpr int kFewest = 5;  // on a busy machine one alone may take the whole budget
  const int before = omp_get_max_threads();
  omp_set_num_threads(std::max(threads, 1));
  const std::vector<float> a(kSize * kSize, 1.0f), b(kSize * kSize, 1.0f);
  std::vector<float> c(kSize * kSize);
  const auto multiply = [&] {
    Gemm(Transpose::kNo, Transpose::kYes, kSize, kSize, kSize, 1.0f, a.data(), kSize, b.data(),
         kSize, 0.0f, c.data(), kSize);
  };
  multiply();  // the first one generates its code and starts threads
  double best_seconds = 1e9;
  const auto start = Timer::now();
  for (int i = 0; i < kFewest || Seconds(Timer::now() - start).count() < kBudgetSeconds; ++i) {
    const auto at = Timer::now();
    multiply();
    best_seconds = std::min(best_seconds, Seconds(Timer::now() - at).count());
  }
  omp_set_num_threads(before);
  return kFlops / best_seconds;
}

}  // namespace headrace
