#include "worker/backend/cuda/kernels.h"

namespace headrace::cuda {
namespace {

// A thread rotates a pack of pairs (i, i + half) of one head; sign −1 rotates back.
template <typename T>
__global__ void RopeKernel(T* qkv, const float* cos, const float* sin, float sign, int64_t n,
                           int64_t length, int64_t rotated, int64_t stride, int64_t half) {
  const int64_t packs = (half + kPack<T> - 1) / kPack<T>;
  for (int64_t i = GlobalThread(); i < n * rotated * packs; i += AllThreads()) {
    const int64_t j = i % packs * kPack<T>, head = i / packs % rotated, t = i / packs / rotated;
    const int64_t left = half - j;
    T* low = qkv + t * stride + head * 2 * half + j;
    T* high = low + half;
    const Floats<T> c = LoadFloats<T>(cos + t % length * half + j, left);
    const Floats<T> s = LoadFloats<T>(sin + t % length * half + j, left);
    Pack<T> a = Load(low, left), b = Load(high, left);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      const float x = ToFloat(a.at[k]), y = ToFloat(b.at[k]), si = sign * s.at[k];
      a.at[k] = FromFloat<T>(x * c.at[k] - y * si);
      b.at[k] = FromFloat<T>(y * c.at[k] + x * si);
    }
    Store(low, left, a);
    Store(high, left, b);
  }
}

}  // namespace

template <typename T>
cudaError_t Rope(T* qkv, const float* cos, const float* sin, const AttentionShape& shape,
                 bool inverse, cudaStream_t stream) {
  const int64_t n = shape.sequences * shape.length, rotated = shape.heads + shape.kv_heads;
  const int64_t half = shape.size / 2, packs = (half + kPack<T> - 1) / kPack<T>;
  if (n * rotated * packs == 0) return cudaSuccess;
  return Launch(RopeKernel<T>, BlocksFor(n * rotated * packs), kThreads, 0, stream, qkv, cos, sin,
                inverse ? -1.0f : 1.0f, n, shape.length, rotated,
                (shape.heads + 2 * shape.kv_heads) * shape.size, half);
}

template cudaError_t Rope<float>(float*, const float*, const float*, const AttentionShape&, bool,
                                 cudaStream_t);
template cudaError_t Rope<Bf16>(Bf16*, const float*, const float*, const AttentionShape&, bool,
                                cudaStream_t);

}  // namespace headrace::cuda
