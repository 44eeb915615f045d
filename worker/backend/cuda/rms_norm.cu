#include "worker/backend/cuda/column_sums.h"
#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/norm_rows.h"

namespace headrace::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(32 * kRowsOfBlock)
    RmsNormKernel(const T* x, const T* branch, T* sum, const float* gain, T* y, float* rstd,
                  int64_t n, int64_t width, float epsilon) {
  const float inverse = 1.0f / static_cast<float>(width);
  const int64_t warp = blockIdx.x * kRowsOfBlock + threadIdx.x / 32;
  for (int64_t t = warp; t < n; t += int64_t{gridDim.x} * kRowsOfBlock) {
    const T* row = JoinBranch(x + t * width, branch == nullptr ? branch : branch + t * width,
                              branch == nullptr ? sum : sum + t * width, width);
    float squares = 0;
    ForPacks<T>(width, [&](int64_t j, int64_t left) {
      const Pack<T> pack = Load(row + j, left);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) squares += ToFloat(pack.at[k]) * ToFloat(pack.at[k]);
    });
    const float r = 1.0f / sqrtf(WarpSum(squares) * inverse + epsilon);
    ForPacks<T>(width, [&](int64_t j, int64_t left) {
      const Pack<T> pack = Load(row + j, left);
      const Floats<T> g = LoadFloats<T>(gain + j, left);
      Pack<T> out;
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        out.at[k] = FromFloat<T>(ToFloat(pack.at[k]) * r * g.at[k]);
      }
      Store(y + t * width + j, left, out);
    });
    if (threadIdx.x % 32 == 0) rstd[t] = r;
  }
}

// With h = dy · gain and x̂ = x · rstd: dx = rstd · (h − x̂ · mean(h · x̂)).
template <typename T>
__global__ void __launch_bounds__(32 * kRowsOfBlock)
    RmsNormInputKernel(const T* dy, const T* x, const float* gain, const float* rstd,
                       const T* residual, T* dx, int64_t n, int64_t width) {
  const float inverse = 1.0f / static_cast<float>(width);
  const int64_t warp = blockIdx.x * kRowsOfBlock + threadIdx.x / 32;
  for (int64_t t = warp; t < n; t += int64_t{gridDim.x} * kRowsOfBlock) {
    const int64_t at = t * width;
    const float r = rstd[t];
    float b = 0;
    ForPacks<T>(width, [&](int64_t j, int64_t left) {
      const Pack<T> in = Load(x + at + j, left), d = Load(dy + at + j, left);
      const Floats<T> g = LoadFloats<T>(gain + j, left);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) b += ToFloat(d.at[k]) * g.at[k] * ToFloat(in.at[k]);
    });
    b = WarpSum(b) * inverse * r;
    ForPacks<T>(width, [&](int64_t j, int64_t left) {
      const Pack<T> in = Load(x + at + j, left), d = Load(dy + at + j, left);
      const Floats<T> g = LoadFloats<T>(gain + j, left);
      Pack<T> out = residual != nullptr ? Load(residual + at + j, left) : Pack<T>{};
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        const float v = r * (ToFloat(d.at[k]) * g.at[k] - ToFloat(in.at[k]) * r * b);
        out.at[k] = FromFloat<T>(residual != nullptr ? ToFloat(out.at[k]) + v : v);
      }
      Store(dx + at + j, left, out);
    });
  }
}

template <typename T>
struct RmsNormTerm {
  using Element = T;
  static constexpr int kSums = 1;
  const T *dy, *x;
  const float* rstd;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t column, int64_t left,
                             Floats<T> (&sums)[kSums]) const {
    const Pack<T> d = Load(dy + row * width + column, left);
    const Pack<T> in = Load(x + row * width + column, left);
    const float r = rstd[row];
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      sums[0].at[k] += ToFloat(d.at[k]) * (ToFloat(in.at[k]) * r);
    }
  }
};

}  // namespace

template <typename T>
cudaError_t RmsNorm(const T* x, const T* branch, T* sum, const float* gain, T* y, float* rstd,
                    int64_t n, int64_t width, float epsilon, cudaStream_t stream) {
  if (n == 0 || width == 0) return cudaSuccess;
  return Launch(RmsNormKernel<T>, BlocksForRows(n), 32 * kRowsOfBlock, 0, stream, x, branch, sum,
                gain, y, rstd, n, width, epsilon);
}

template <typename T>
cudaError_t RmsNormBackward(const T* dy, const T* x, const float* gain, const float* rstd,
                            const T* residual, T* dx, float* dgain, int64_t n, int64_t width,
                            float* scratch, cudaStream_t stream) {
  if (n == 0 || width == 0) return cudaSuccess;
  // The gain first: dx may be dy.
  const cudaError_t error =
      AddColumnSums(RmsNormTerm<T>{dy, x, rstd, width}, dgain, nullptr, n, width, scratch, stream);
  if (error != cudaSuccess) return error;
  return Launch(RmsNormInputKernel<T>, BlocksForRows(n), 32 * kRowsOfBlock, 0, stream, dy, x, gain,
                rstd, residual, dx, n, width);
}

#define HEADRACE_INSTANTIATE(T)                                                              \
  template cudaError_t RmsNorm<T>(const T*, const T*, T*, const float*, T*, float*, int64_t, \
                                  int64_t, float, cudaStream_t);                             \
  template cudaError_t RmsNormBackward<T>(const T*, const T*, const float*, const float*,    \
                                          const T*, T*, float*, int64_t, int64_t, float*,    \
                                          cudaStream_t)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(Bf16);

}  // namespace headrace::cuda
