#include "worker/backend/cuda/column_sums.h"
#include "worker/backend/cuda/kernels.h"

namespace headrace::cuda {
namespace {

template <typename T>
struct BiasTerm {
  using Element = T;
  static constexpr int kSums = 1;
  const T* dy;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t column, int64_t left,
                             Floats<T> (&sums)[kSums]) const {
    const Pack<T> pack = Load(dy + row * width + column, left);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) sums[0].at[k] += ToFloat(pack.at[k]);
  }
};

}  // namespace

template <typename T>
cudaError_t BiasGradient(const T* dy, float* dbias, int64_t n, int64_t width, float* scratch,
                         cudaStream_t stream) {
  if (n == 0 || width == 0) return cudaSuccess;
  return AddColumnSums(BiasTerm<T>{dy, width}, dbias, nullptr, n, width, scratch, stream);
}

int64_t ColumnSumsScratchBytes(int64_t n, int64_t width, int sums) {
  return NumChunks(n) * sums * width * static_cast<int64_t>(sizeof(float));
}

template cudaError_t BiasGradient<float>(const float*, float*, int64_t, int64_t, float*,
                                         cudaStream_t);
template cudaError_t BiasGradient<Bf16>(const Bf16*, float*, int64_t, int64_t, float*,
                                        cudaStream_t);

}  // namespace headrace::cuda
