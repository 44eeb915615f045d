// Matrix products behind a seam: cuBLASLt on a device, one thread an output where there is none.
//
// Row-major c[m, n] = op(a)[m, k] · op(b)[k, n] (+ c), then the epilogue; sums in fp32. The same
// shape always runs the same algorithm, so the same inputs give the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

namespace headrace::cuda {

enum class GemmType { kFloat32, kBfloat16 };

enum class Epilogue {
  kNone,
  kAdd,           // + aux[m, n]
  kBias,          // + bias[n], of c's type
  kBiasAdd,       // + bias + aux
  kBiasGelu,      // aux[m, n] = c + bias; c = gelu(aux)
  kGeluBackward,  // c ∘ gelu'(aux)
};

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;  // a lies as [k, m], b as [n, k]
  GemmType in = GemmType::kFloat32, out = GemmType::kFloat32;
  bool accumulate = false;  // c +=; only without an epilogue
  Epilogue epilogue = Epilogue::kNone;

  auto Key() const {
    return std::tuple(m, n, k, transpose_a, transpose_b, in, out, accumulate, epilogue);
  }
};

class Gemm {
 public:
  virtual ~Gemm() = default;
  // Whether Run has this shape: not every device serves every epilogue.
  virtual bool Has(const GemmShape& /*shape*/) { return true; }
  // Puts the product on `stream`. bias and aux as the epilogue needs them, else null; aux is of c's
  // type. Returns an empty string, or what failed: the call, its shape and its error's text. m, n
  // and k are at least 1; matrices begin at multiples of kAlignment (plan/alignment.h).
  virtual std::string Run(const GemmShape& shape, const void* a, const void* b, void* c,
                          const void* bias, void* aux, cudaStream_t stream) = 0;
};

// "cublasLtMatmul [64, 128] · [128, 32], bf16"
std::string Describe(const std::string& call, const GemmShape& shape);

// For tests of what surrounds products, and to compare cuBLASLt's with. Slow.
std::unique_ptr<Gemm> CreateReferenceGemm();

// cuBLASLt, with a plan (layouts, epilogue, algorithm) kept for each shape. `workspace`: device
// memory of `workspace_bytes` that products of one stream share. TF32 is used only if `tf32`. On
// failure returns null and says why in *error.
std::unique_ptr<Gemm> CreateCublasLtGemm(void* workspace, size_t workspace_bytes, bool tf32,
                                         std::string* error);

}  // namespace headrace::cuda
