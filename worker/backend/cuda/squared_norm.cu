#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/reduce.h"

namespace headrace::cuda {
namespace {

constexpr int64_t kElements = 1 << 16;  // of one partial sum

__global__ void __launch_bounds__(kThreads)
    SquaresKernel(const float* x, int64_t count, double* partial) {
  const int64_t begin = blockIdx.x * kElements, end = min(count, begin + kElements);
  double sum = 0;
  for (int64_t i = begin + threadIdx.x * 4; i < end; i += kThreads * 4) {
    const Pack<float> pack = Load(x + i, end - i);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum += static_cast<double>(pack.at[k]) * static_cast<double>(pack.at[k]);
    }
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

}  // namespace

int64_t SquaredNormScratchBytes(int64_t count) {
  return (count + kElements - 1) / kElements * static_cast<int64_t>(sizeof(double));
}

cudaError_t SquaredNorm(const float* x, int64_t count, double* sum, double* scratch,
                        cudaStream_t stream) {
  const int64_t blocks = (count + kElements - 1) / kElements;
  if (blocks > 0) {
    const cudaError_t error = Launch(SquaresKernel, static_cast<unsigned>(blocks), kThreads, 0,
                                     stream, x, count, scratch);
    if (error != cudaSuccess) return error;
  }
  return SumInOrder(scratch, sum, blocks, stream);
}

}  // namespace headrace::cuda
