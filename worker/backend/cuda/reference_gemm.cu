#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/pack.h"

namespace headrace::cuda {
namespace {

constexpr int kSide = 16;

__device__ float Tanh(float x) { return tanhf(x); }

// √(2/π) · (x + 0.044715 x³), GELU's tanh form.
__device__ float Inner(float x) { return 0.7978845608f * (x + 0.044715f * x * x * x); }

__device__ float GeluSlope(float x) {
  const float t = Tanh(Inner(x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

template <typename In, typename Out>
__global__ void ReferenceKernel(GemmShape s, const In* a, const In* b, Out* c, const Out* bias,
                                Out* aux) {
  const int64_t j = int64_t{blockIdx.x} * kSide + threadIdx.x;
  const int64_t i = int64_t{blockIdx.y} * kSide + threadIdx.y;
  if (i >= s.m || j >= s.n) return;
  float sum = 0;
  for (int64_t k = 0; k < s.k; ++k) {
    const float left = ToFloat(s.transpose_a ? a[k * s.m + i] : a[i * s.k + k]);
    const float right = ToFloat(s.transpose_b ? b[j * s.k + k] : b[k * s.n + j]);
    sum += left * right;
  }
  const int64_t at = i * s.n + j;
  if (s.accumulate) sum += ToFloat(c[at]);
  const bool adds = s.epilogue == Epilogue::kAdd || s.epilogue == Epilogue::kBiasAdd;
  if (adds) sum += ToFloat(aux[at]);
  if (s.epilogue == Epilogue::kBias || s.epilogue == Epilogue::kBiasGelu ||
      s.epilogue == Epilogue::kBiasAdd) {
    sum += ToFloat(bias[j]);
  }
  if (s.epilogue == Epilogue::kBiasGelu) {
    aux[at] = FromFloat<Out>(sum);
    sum = 0.5f * sum * (1 + Tanh(Inner(sum)));
  }
  if (s.epilogue == Epilogue::kGeluBackward) sum *= GeluSlope(ToFloat(aux[at]));
  c[at] = FromFloat<Out>(sum);
}

class ReferenceGemm final : public Gemm {
 public:
  std::string Run(const GemmShape& s, const void* a, const void* b, void* c, const void* bias,
                  void* aux, cudaStream_t stream) override {
    cudaError_t error = cudaSuccess;
    if (s.in == GemmType::kFloat32) {
      error = Start<float, float>(s, a, b, c, bias, aux, stream);
    } else if (s.out == GemmType::kFloat32) {
      error = Start<Bf16, float>(s, a, b, c, bias, aux, stream);
    } else {
      error = Start<Bf16, Bf16>(s, a, b, c, bias, aux, stream);
    }
    if (error == cudaSuccess) return "";
    return Describe("reference product", s) + ": " + cudaGetErrorString(error);
  }

 private:
  template <typename In, typename Out>
  cudaError_t Start(const GemmShape& s, const void* a, const void* b, void* c, const void* bias,
                    void* aux, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>((s.n + kSide - 1) / kSide),
                      static_cast<unsigned>((s.m + kSide - 1) / kSide));
    return Launch(ReferenceKernel<In, Out>, blocks, dim3(kSide, kSide), 0, stream, s,
                  static_cast<const In*>(a), static_cast<const In*>(b), static_cast<Out*>(c),
                  static_cast<const Out*>(bias), static_cast<Out*>(aux));
  }
};

}  // namespace

std::string Describe(const std::string& call, const GemmShape& s) {
  return call + " [" + std::to_string(s.m) + ", " + std::to_string(s.k) + "] · [" +
         std::to_string(s.k) + ", " + std::to_string(s.n) + "], " +
         (s.in == GemmType::kFloat32 ? "fp32" : "bf16");
}

std::unique_ptr<Gemm> CreateReferenceGemm() { return std::make_unique<ReferenceGemm>(); }

}  // namespace headrace::cuda
