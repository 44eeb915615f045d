#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/random.h"

namespace headrace::cuda {
namespace {

// Element i takes number i mod 4 of block i / 4.
template <typename T>
__global__ void DropoutKernel(const T* x, T* y, int64_t count, uint32_t threshold, float keep,
                              Stream mask) {
  for (int64_t i = GlobalThread() * kPack<T>; i < count; i += AllThreads() * kPack<T>) {
    Pack<T> pack = Load(x + i, count - i);
#pragma unroll
    for (int k = 0; k < kPack<T>; k += 4) {
      const Block random = RandomBlock(mask, static_cast<uint64_t>((i + k) / 4));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float factor = (random.at[j] >> 8) < threshold ? 0.0f : keep;
        pack.at[k + j] = FromFloat<T>(ToFloat(pack.at[k + j]) * factor);
      }
    }
    Store(y + i, count - i, pack);
  }
}

}  // namespace

template <typename T>
cudaError_t Dropout(const T* x, T* y, int64_t count, float p, const RandomStream& mask,
                    cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(DropoutKernel<T>, BlocksFor((count + kPack<T> - 1) / kPack<T>), kThreads, 0, stream,
                x, y, count, DropThreshold(p), 1.0f / (1.0f - p), DeviceStream(mask));
}

template cudaError_t Dropout<float>(const float*, float*, int64_t, float, const RandomStream&,
                                    cudaStream_t);
template cudaError_t Dropout<Bf16>(const Bf16*, Bf16*, int64_t, float, const RandomStream&,
                                   cudaStream_t);

}  // namespace headrace::cuda
