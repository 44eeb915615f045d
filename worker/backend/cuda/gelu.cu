#include "worker/backend/cuda/kernels.h"

namespace headrace::cuda {
namespace {

// gelu(x) = x/2 · (1 + tanh(u)) = x · sigmoid(2u), u = √(2/π) · (x + 0.044715 x³).
constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

struct GeluValue {
  __device__ float operator()(float x) const {
    const float twice_u = kTwoRootTwoOverPi * (x + kCubic * x * x * x);
    return x / (1.0f + expf(-twice_u));
  }
};

struct GeluSlope {
  __device__ float operator()(float x) const {
    const float twice_u = kTwoRootTwoOverPi * (x + kCubic * x * x * x);
    const float s = 1.0f / (1.0f + expf(-twice_u));
    // 1 − s without cancellation, and 0 where exp overflows.
    const float rest = 1.0f / (1.0f + expf(twice_u));
    const float slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * x * x);
    const float bend = s * rest;
    return s + (bend > 0.0f ? x * slope * bend : x == x ? 0.0f : x);
  }
};

template <typename T>
__global__ void GeluKernel(const T* x, T* y, int64_t count) {
  for (int64_t i = GlobalThread() * kPack<T>; i < count; i += AllThreads() * kPack<T>) {
    Pack<T> pack = Load(x + i, count - i);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      pack.at[k] = FromFloat<T>(GeluValue()(ToFloat(pack.at[k])));
    }
    Store(y + i, count - i, pack);
  }
}

template <typename T>
__global__ void GeluBackwardKernel(const T* dy, const T* x, T* dx, int64_t count) {
  for (int64_t i = GlobalThread() * kPack<T>; i < count; i += AllThreads() * kPack<T>) {
    const Pack<T> in = Load(x + i, count - i);
    Pack<T> pack = Load(dy + i, count - i);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      pack.at[k] = FromFloat<T>(ToFloat(pack.at[k]) * GeluSlope()(ToFloat(in.at[k])));
    }
    Store(dx + i, count - i, pack);
  }
}

template <typename T>
int64_t Packs(int64_t count) {
  return (count + kPack<T> - 1) / kPack<T>;
}

}  // namespace

template <typename T>
cudaError_t Gelu(const T* x, T* y, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(GeluKernel<T>, BlocksFor(Packs<T>(count)), kThreads, 0, stream, x, y, count);
}

template <typename T>
cudaError_t GeluBackward(const T* dy, const T* x, T* dx, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(GeluBackwardKernel<T>, BlocksFor(Packs<T>(count)), kThreads, 0, stream, dy, x, dx,
                count);
}

template cudaError_t Gelu<float>(const float*, float*, int64_t, cudaStream_t);
template cudaError_t Gelu<Bf16>(const Bf16*, Bf16*, int64_t, cudaStream_t);
template cudaError_t GeluBackward<float>(const float*, const float*, float*, int64_t, cudaStream_t);
template cudaError_t GeluBackward<Bf16>(const Bf16*, const Bf16*, Bf16*, int64_t, cudaStream_t);

}  // namespace headrace::cuda
