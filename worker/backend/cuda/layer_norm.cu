#include "worker/backend/cuda/column_sums.h"
#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/norm_rows.h"

namespace headrace::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(32 * kRowsOfBlock)
    LayerNormKernel(const T* x, const T* branch, T* sum, const float* gain, const float* bias, T* y,
                    float* mean, float* rstd, int64_t n, int64_t width, float epsilon) {
  const float inverse = 1.0f / static_cast<float>(width);
  const int64_t warp = blockIdx.x * kRowsOfBlock + threadIdx.x / 32;
  for (int64_t t = warp; t < n; t += int64_t{gridDim.x} * kRowsOfBlock) {
    const T* row = JoinBranch(x + t * width, branch == nullptr ? branch : branch + t * width,
                              branch == nullptr ? sum : sum + t * width, width);
    float total = 0;
    ForPacks<T>(width, [&](int64_t j, int64_t left) {
      const Pack<T> pack = Load(row + j, left);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) total += ToFloat(pack.at[k]);
    });
    const float m = WarpSum(total) * inverse;
    float squares = 0;
    ForPacks<T>(width, [&](int64_t j, int64_t left) {
      const Pack<T> pack = Load(row + j, left);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        const float d = ToFloat(pack.at[k]) - m;
        if (k < left) squares += d * d;
      }
    });
    const float r = 1.0f / sqrtf(WarpSum(squares) * inverse + epsilon);
    ForPacks<T>(width, [&](int64_t j, int64_t left) {
      const Pack<T> pack = Load(row + j, left);
      const Floats<T> g = LoadFloats<T>(gain + j, left), b = LoadFloats<T>(bias + j, left);
      Pack<T> out;
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        out.at[k] = FromFloat<T>((ToFloat(pack.at[k]) - m) * r * g.at[k] + b.at[k]);
      }
      Store(y + t * width + j, left, out);
    });
    if (threadIdx.x % 32 == 0) {
      mean[t] = m;
      rstd[t] = r;
    }
  }
}

// With h = dy · gain and x̂ = (x − mean) · rstd: dx = rstd · (h − mean(h) − x̂ · mean(h · x̂)).
template <typename T>
__global__ void __launch_bounds__(32 * kRowsOfBlock)
    LayerNormInputKernel(const T* dy, const T* x, const float* gain, const float* mean,
                         const float* rstd, const T* residual, T* dx, int64_t n, int64_t width) {
  const float inverse = 1.0f / static_cast<float>(width);
  const int64_t warp = blockIdx.x * kRowsOfBlock + threadIdx.x / 32;
  for (int64_t t = warp; t < n; t += int64_t{gridDim.x} * kRowsOfBlock) {
    const int64_t at = t * width;
    const float m = mean[t], r = rstd[t];
    float a = 0, b = 0;
    ForPacks<T>(width, [&](int64_t j, int64_t left) {
      const Pack<T> in = Load(x + at + j, left), d = Load(dy + at + j, left);
      const Floats<T> g = LoadFloats<T>(gain + j, left);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        const float h = ToFloat(d.at[k]) * g.at[k];  // 0 beyond the row
        a += h;
        b += h * (ToFloat(in.at[k]) - m);
      }
    });
    a = WarpSum(a) * inverse;
    b = WarpSum(b) * inverse * r;
    ForPacks<T>(width, [&](int64_t j, int64_t left) {
      const Pack<T> in = Load(x + at + j, left), d = Load(dy + at + j, left);
      const Floats<T> g = LoadFloats<T>(gain + j, left);
      Pack<T> out = residual != nullptr ? Load(residual + at + j, left) : Pack<T>{};
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        const float h = ToFloat(d.at[k]) * g.at[k];
        const float v = r * (h - a - (ToFloat(in.at[k]) - m) * r * b);
        out.at[k] = FromFloat<T>(residual != nullptr ? ToFloat(out.at[k]) + v : v);
      }
      Store(dx + at + j, left, out);
    });
  }
}

template <typename T>
struct LayerNormTerm {
  using Element = T;
  static constexpr int kSums = 2;
  const T *dy, *x;
  const float *mean, *rstd;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t column, int64_t left,
                             Floats<T> (&sums)[kSums]) const {
    const Pack<T> d = Load(dy + row * width + column, left);
    const Pack<T> in = Load(x + row * width + column, left);
    const float m = mean[row], r = rstd[row];
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      sums[0].at[k] += ToFloat(d.at[k]) * ((ToFloat(in.at[k]) - m) * r);
      sums[1].at[k] += ToFloat(d.at[k]);
    }
  }
};

}  // namespace

template <typename T>
cudaError_t LayerNorm(const T* x, const T* branch, T* sum, const float* gain, const float* bias,
                      T* y, float* mean, float* rstd, int64_t n, int64_t width, float epsilon,
                      cudaStream_t stream) {
  if (n == 0 || width == 0) return cudaSuccess;
  return Launch(LayerNormKernel<T>, BlocksForRows(n), 32 * kRowsOfBlock, 0, stream, x, branch, sum,
                gain, bias, y, mean, rstd, n, width, epsilon);
}

template <typename T>
cudaError_t LayerNormBackward(const T* dy, const T* x, const float* gain, const float* mean,
                              const float* rstd, const T* residual, T* dx, float* dgain,
                              float* dbias, int64_t n, int64_t width, float* scratch,
                              cudaStream_t stream) {
  if (n == 0 || width == 0) return cudaSuccess;
  // Parameters first: dx may be dy.
  const cudaError_t error = AddColumnSums(LayerNormTerm<T>{dy, x, mean, rstd, width}, dgain, dbias,
                                          n, width, scratch, stream);
  if (error != cudaSuccess) return error;
  return Launch(LayerNormInputKernel<T>, BlocksForRows(n), 32 * kRowsOfBlock, 0, stream, dy, x,
                gain, mean, rstd, residual, dx, n, width);
}

#define HEADRACE_INSTANTIATE(T)                                                                  \
  template cudaError_t LayerNorm<T>(const T*, const T*, T*, const float*, const float*, T*,      \
                                    float*, float*, int64_t, int64_t, float, cudaStream_t);      \
  template cudaError_t LayerNormBackward<T>(const T*, const T*, const float*, const float*,      \
                                            const float*, const T*, T*, float*, float*, int64_t, \
                                            int64_t, float*, cudaStream_t)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(Bf16);

}  // namespace headrace::cuda
