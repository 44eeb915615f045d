// Matrix products in one precision: what the linear layers multiply with, and with bf16 the tiles
// that attention multiplies with. The layers above and the ops around it are the same for all.
//
//   kFp32          dnnl_sgemm (gemm.h)
//   kBf16          inputs rounded to bf16 as they are packed, multiplied by vdpbf16ps
//   kBf16Emulated  the same packing, multiplied in fp32
//
// With bf16, an element of c is a sum over k in one order, which does not depend on m, n, threads
// or where the element lies: pairs (k, k + 1) ascending, odd one first, in parts of kPanelDepth.
#pragma once

#include <cstdint>
#include <memory>

#include "plan/precision.h"
#include "worker/backend/cpu/gemm.h"

namespace headrace {

struct Bf16Tiles;

// Row-major c[m,n] = alpha · op(a)[m,k] · op(b)[k,n] + beta · c (+ bias). ld*: floats from row to
// row.
struct Product {
  Transpose ta = Transpose::kNo, tb = Transpose::kNo;
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1;
  const float* a = nullptr;
  int64_t lda = 0;
  const float* b = nullptr;
  int64_t ldb = 0;
  float beta = 0;               // 0: c is not read
  const float* bias = nullptr;  // [n], added to each row; null: none; only with beta 0
  float* c = nullptr;
  int64_t ldc = 0;
};

// For the one thread that owns it, whose products it splits over its threads.
class Products {
 public:
  virtual ~Products() = default;
  // m, n and k may be 0, but k only with beta 1.
  virtual void Multiply(const Product& product) const = 0;
  // What smaller products are made of (bf16_tiles.h); null where products are fp32.
  virtual const Bf16Tiles* bf16_tiles() const { return nullptr; }
};

// `panels`: PanelBytes(precision, threads) bytes at kAlignment, which must outlive the products;
// null where that is 0. kBf16 only where CpuMultipliesBf16 (worker/backend/ops.h).
std::unique_ptr<Products> CreateProducts(Precision precision, int threads, void* panels);

// Of which CreateProducts picks one.
std::unique_ptr<Products> CreateBf16Products(int threads, void* panels);
std::unique_ptr<Products> CreateEmulatedBf16Products(int threads, void* panels);

}  // namespace headrace
