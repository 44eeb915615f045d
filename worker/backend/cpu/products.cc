#include "worker/backend/cpu/products.h"

#include <algorithm>

namespace headrace {
namespace {

class Fp32Products final : public Products {
 public:
  void Multiply(const Product& p) const override {
    float beta = p.beta;
    if (p.bias != nullptr) {
      for (int64_t row = 0; row < p.m; ++row) std::copy_n(p.bias, p.n, p.c + row * p.ldc);
      beta = 1;
    }
    Gemm(p.ta, p.tb, p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, beta, p.c, p.ldc);
  }
};

}  // namespace

std::unique_ptr<Products> CreateProducts(Precision precision, int threads, void* panels) {
  switch (precision) {
    case Precision::kBf16:
      return CreateBf16Products(threads, panels);
    case Precision::kBf16Emulated:
      return CreateEmulatedBf16Products(threads, panels);
    case Precision::kFp32:
      break;
  }
  return std::make_unique<Fp32Products>();
}

}  // namespace headrace
