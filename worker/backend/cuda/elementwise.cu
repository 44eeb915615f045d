#include "worker/backend/cuda/kernels.h"

namespace headrace::cuda {
namespace {

template <typename T>
__global__ void AddKernel(const T* a, const T* b, T* y, int64_t count) {
  for (int64_t i = GlobalThread() * kPack<T>; i < count; i += AllThreads() * kPack<T>) {
    const Pack<T> p = Load(a + i, count - i), q = Load(b + i, count - i);
    Pack<T> out;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      out.at[k] = FromFloat<T>(ToFloat(p.at[k]) + ToFloat(q.at[k]));
    }
    Store(y + i, count - i, out);
  }
}

__global__ void FillKernel(float* x, int64_t count, float value) {
  for (int64_t i = GlobalThread() * 4; i < count; i += AllThreads() * 4) {
    Store(x + i, count - i, Pack<float>{{value, value, value, value}});
  }
}

__device__ uint16_t Narrow(float x) {
  const uint32_t bits = __float_as_uint(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;  // rounding up could carry into an infinity
  return static_cast<uint16_t>((nan ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1)) >>
                               16);
}

// Eight at a time: 32 bytes of floats, 16 of bfloat16.
__global__ void NarrowKernel(const float* x, uint16_t* y, int64_t count) {
  for (int64_t i = GlobalThread() * 8; i < count; i += AllThreads() * 8) {
    const Pack<float> low = Load(x + i, count - i), high = Load(x + i + 4, count - i - 4);
    Pack<uint16_t> out;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      out.at[k] = Narrow(low.at[k]);
      out.at[k + 4] = Narrow(high.at[k]);
    }
    if (count - i >= 8 && reinterpret_cast<uintptr_t>(y + i) % 16 == 0) {
      *reinterpret_cast<Pack<uint16_t>*>(y + i) = out;
      continue;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k < count - i) y[i + k] = out.at[k];
    }
  }
}

__global__ void WidenKernel(const uint16_t* x, float* y, int64_t count) {
  for (int64_t i = GlobalThread() * 8; i < count; i += AllThreads() * 8) {
    Pack<uint16_t> in;
    if (count - i >= 8 && reinterpret_cast<uintptr_t>(x + i) % 16 == 0) {
      in = *reinterpret_cast<const Pack<uint16_t>*>(x + i);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) in.at[k] = k < count - i ? x[i + k] : uint16_t{0};
    }
    Pack<float> low, high;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      low.at[k] = __uint_as_float(static_cast<uint32_t>(in.at[k]) << 16);
      high.at[k] = __uint_as_float(static_cast<uint32_t>(in.at[k + 4]) << 16);
    }
    Store(y + i, count - i, low);
    Store(y + i + 4, count - i - 4, high);
  }
}

}  // namespace

template <typename T>
cudaError_t Add(const T* a, const T* b, T* y, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(AddKernel<T>, BlocksFor((count + kPack<T> - 1) / kPack<T>), kThreads, 0, stream, a,
                b, y, count);
}

cudaError_t Fill(float* x, int64_t count, float value, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(FillKernel, BlocksFor((count + 3) / 4), kThreads, 0, stream, x, count, value);
}

cudaError_t NarrowBf16(const float* x, uint16_t* y, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(NarrowKernel, BlocksFor((count + 7) / 8), kThreads, 0, stream, x, y, count);
}

cudaError_t WidenBf16(const uint16_t* x, float* y, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(WidenKernel, BlocksFor((count + 7) / 8), kThreads, 0, stream, x, y, count);
}

template cudaError_t Add<float>(const float*, const float*, float*, int64_t, cudaStream_t);
template cudaError_t Add<Bf16>(const Bf16*, const Bf16*, Bf16*, int64_t, cudaStream_t);

}  // namespace headrace::cuda
