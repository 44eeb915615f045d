#include "worker/backend/cuda/kernels.h"

namespace headrace::cuda {
namespace {

template <typename T>
__global__ void SwiGluKernel(const T* gate_up, T* y, int64_t n, int64_t width) {
  const int64_t packs = (width + kPack<T> - 1) / kPack<T>;
  for (int64_t i = GlobalThread(); i < n * packs; i += AllThreads()) {
    const int64_t t = i / packs, j = i % packs * kPack<T>, left = width - j;
    const Pack<T> gate = Load(gate_up + 2 * t * width + j, left);
    const Pack<T> up = Load(gate_up + (2 * t + 1) * width + j, left);
    Pack<T> out;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      const float g = ToFloat(gate.at[k]);
      out.at[k] = FromFloat<T>(g / (1.0f + expf(-g)) * ToFloat(up.at[k]));
    }
    Store(y + t * width + j, left, out);
  }
}

// silu(g) = g·s, silu'(g) = s·(1 + g·(1 − s)).
template <typename T>
__global__ void SwiGluBackwardKernel(const T* dy, const T* gate_up, T* dgate_up, int64_t n,
                                     int64_t width) {
  const int64_t packs = (width + kPack<T> - 1) / kPack<T>;
  for (int64_t i = GlobalThread(); i < n * packs; i += AllThreads()) {
    const int64_t t = i / packs, j = i % packs * kPack<T>, left = width - j;
    const int64_t gate_at = 2 * t * width + j, up_at = gate_at + width;
    const Pack<T> gate = Load(gate_up + gate_at, left), up = Load(gate_up + up_at, left);
    const Pack<T> d = Load(dy + t * width + j, left);
    Pack<T> dgate, dup;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      const float g = ToFloat(gate.at[k]), u = ToFloat(up.at[k]), v = ToFloat(d.at[k]);
      const float s = 1.0f / (1.0f + expf(-g)), rest = 1.0f / (1.0f + expf(g));
      dgate.at[k] = FromFloat<T>(v * u * (s * (1.0f + g * rest)));
      dup.at[k] = FromFloat<T>(v * (g * s));
    }
    Store(dgate_up + gate_at, left, dgate);
    Store(dgate_up + up_at, left, dup);
  }
}

}  // namespace

template <typename T>
cudaError_t SwiGlu(const T* gate_up, T* y, int64_t n, int64_t width, cudaStream_t stream) {
  const int64_t packs = n * ((width + kPack<T> - 1) / kPack<T>);
  if (packs == 0) return cudaSuccess;
  return Launch(SwiGluKernel<T>, BlocksFor(packs), kThreads, 0, stream, gate_up, y, n, width);
}

template <typename T>
cudaError_t SwiGluBackward(const T* dy, const T* gate_up, T* dgate_up, int64_t n, int64_t width,
                           cudaStream_t stream) {
  const int64_t packs = n * ((width + kPack<T> - 1) / kPack<T>);
  if (packs == 0) return cudaSuccess;
  return Launch(SwiGluBackwardKernel<T>, BlocksFor(packs), kThreads, 0, stream, dy, gate_up,
                dgate_up, n, width);
}

template cudaError_t SwiGlu<float>(const float*, float*, int64_t, int64_t, cudaStream_t);
template cudaError_t SwiGlu<Bf16>(const Bf16*, Bf16*, int64_t, int64_t, cudaStream_t);
template cudaError_t SwiGluBackward<float>(const float*, const float*, float*, int64_t, int64_t,
                                           cudaStream_t);
template cudaError_t SwiGluBackward<Bf16>(const Bf16*, const Bf16*, Bf16*, int64_t, int64_t,
                                          cudaStream_t);

}  // namespace headrace::cuda
