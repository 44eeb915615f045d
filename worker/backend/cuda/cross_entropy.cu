#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/reduce.h"

namespace headrace::cuda {
namespace {

// One block a row: its maximum, its sum of exponentials, then the loss and the gradient in place.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    CrossEntropyKernel(T* logits, const int32_t* targets, double* losses, bool gradient,
                       int64_t vocabulary, float scale) {
  T* row = logits + blockIdx.x * vocabulary;
  const int64_t target = targets[blockIdx.x];
  const int64_t step = int64_t{kThreads} * kPack<T>, begin = threadIdx.x * int64_t{kPack<T>};
  float max = -INFINITY;
  for (int64_t j = begin; j < vocabulary; j += step) {
    const Pack<T> pack = Load(row + j, vocabulary - j);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      if (k < vocabulary - j) max = fmaxf(max, ToFloat(pack.at[k]));
    }
  }
  max = BlockMax(max);
  float part = 0;
  for (int64_t j = begin; j < vocabulary; j += step) {
    const Pack<T> pack = Load(row + j, vocabulary - j);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      if (k < vocabulary - j) part += expf(ToFloat(pack.at[k]) - max);
    }
  }
  const double sum = BlockSum(static_cast<double>(part));
  if (losses != nullptr && threadIdx.x == 0) {
    losses[blockIdx.x] =
        log(sum) + (static_cast<double>(max) - static_cast<double>(ToFloat(row[target])));
  }
  if (!gradient) return;
  if (losses != nullptr) __syncthreads();  // the loss reads a logit that another thread overwrites
  const float factor = static_cast<float>(static_cast<double>(scale) / sum);
  for (int64_t j = begin; j < vocabulary; j += step) {
    Pack<T> pack = Load(row + j, vocabulary - j);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      const float p = expf(ToFloat(pack.at[k]) - max) * factor;
      pack.at[k] = FromFloat<T>(j + k == target ? p - scale : p);
    }
    Store(row + j, vocabulary - j, pack);
  }
}

// At most a few thousand values a call: one thread, so that the order is plain.
__global__ void SumInOrderKernel(const double* values, double* sum, int64_t count, bool add) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += values[i];
  *sum = add ? *sum + total : total;
}

}  // namespace

template <typename T>
cudaError_t CrossEntropy(T* logits, const int32_t* targets, double* losses, bool gradient,
                         int64_t n, int64_t vocabulary, float scale, cudaStream_t stream) {
  if (n == 0 || vocabulary == 0) return cudaSuccess;
  return Launch(CrossEntropyKernel<T>, static_cast<unsigned>(n), kThreads, 0, stream, logits,
                targets, losses, gradient, vocabulary, scale);
}

cudaError_t SumInOrder(const double* values, double* sum, int64_t count, cudaStream_t stream) {
  return Launch(SumInOrderKernel, 1, 1, 0, stream, values, sum, count, false);
}
cudaError_t AddInOrder(const double* values, double* sum, int64_t count, cudaStream_t stream) {
  return Launch(SumInOrderKernel, 1, 1, 0, stream, values, sum, count, true);
}

template cudaError_t CrossEntropy<float>(float*, const int32_t*, double*, bool, int64_t, int64_t,
                                         float, cudaStream_t);
template cudaError_t CrossEntropy<Bf16>(Bf16*, const int32_t*, double*, bool, int64_t, int64_t,
                                        float, cudaStream_t);

}  // namespace headrace::cuda
