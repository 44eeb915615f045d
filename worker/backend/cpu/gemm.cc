#include "worker/backend/cpu/gemm.h"

#include <cstdio>
#include <cstdlib>

#include "oneapi/dnnl/dnnl.h"

namespace headrace {

void Gemm(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  const dnnl_status_t status = dnnl_sgemm(static_cast<char>(ta), static_cast<char>(tb), m, n, k,
                                          alpha, a, lda, b, ldb, beta, c, ldc);
  if (status != dnnl_success) {
    std::fprintf(stderr, "dnnl_sgemm(%c, %c, %lld, %lld, %lld) failed with status %d\n",
                 static_cast<char>(ta), static_cast<char>(tb), static_cast<long long>(m),
                 static_cast<long long>(n), static_cast<long long>(k), static_cast<int>(status));
    std::abort();
  }
}

}  // namespace headrace
