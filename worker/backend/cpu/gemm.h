// Matrix products, all of them through dnnl_sgemm: the matmul primitive differs in the last bits.
#pragma once

#include <cstdint>

namespace headrace {

enum class Transpose : char { kNo = 'N', kYes = 'T' };

// Row-major c[m,n] = alpha * op(a)[m,k] · op(b)[k,n] + beta * c; ld*: floats from row to row.
// beta = 0 does not read c. Aborts if oneDNN refuses, which it does only for arguments that are
// wrong or when its own few pages of scratch memory cannot be had.
void Gemm(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

}  // namespace headrace
