#include "tests/cuda_emulation/planted_bugs.h"
#include "worker/backend/cuda/launch.h"

namespace headrace::emulation {
namespace {

using cuda::Launch;

// out[c][r] = in[r][c] by tiles of 32 × 32.
template <Bug kBug>
__global__ void Transpose(float* out, const float* in, int rows, int columns) {
  HEADRACE_SHARED(float, tile, [32][33]);
  const int c = blockIdx.x * 32 + threadIdx.x, r0 = blockIdx.y * 32;
  const int shift = kBug == Bug::kSharedOutOfBounds ? 1 : 0;
  if (kBug == Bug::kDivergentBarrier && c >= columns) return;
  for (int j = threadIdx.y; j < 32; j += 8) {
    if (c < columns && r0 + j < rows) tile[j + shift][threadIdx.x] = in[(r0 + j) * columns + c];
  }
  if (kBug != Bug::kNoBarrier) __syncthreads();
  const int r = r0 + threadIdx.x, c0 = blockIdx.x * 32;
  for (int j = threadIdx.y; j < 32; j += 8) {
    if (r < rows && c0 + j < columns) out[(c0 + j) * rows + r] = tile[threadIdx.x + shift][j];
  }
}

__device__ float WarpSum(float v) {
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

template <Bug kBug>
__device__ float BlockSum(float v) {
  HEADRACE_SHARED(float, part, [32]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  v = WarpSum(v);
  if (kBug != Bug::kNoBarrierBeforeReuse) __syncthreads();  // part may still be read
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return WarpSum(lane < num_warps ? part[lane] : 0.0f);
}

// out = in − its row's mean, scaled by the row's root mean square: two sums through one buffer.
template <Bug kBug>
__global__ void Normalise(float* out, const float* in, int columns) {
  const float* x = in + blockIdx.x * columns;
  float* y = out + blockIdx.x * columns;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += x[i];
  if (kBug == Bug::kShuffleInHalfAWarp && threadIdx.x < 16) sum += __shfl_xor_sync(~0u, sum, 1);
  const float mean = BlockSum<kBug>(sum) / columns;
  float squares = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = rsqrtf(BlockSum<kBug>(squares) / columns);
  const int end = kBug == Bug::kGlobalOutOfBounds ? columns + 1 : columns;
  for (int i = threadIdx.x; i < end; i += blockDim.x) y[i] = (x[i] - mean) * scale;
}

// out[i] = in[i] + in[the lane beside it], each warp through its own shared memory.
template <Bug kBug>
__global__ void AddNeighbour(float* out, const float* in, int count) {
  HEADRACE_SHARED(float, seen, [128]);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  seen[threadIdx.x] = i < count ? in[i] : 0.0f;
  if (kBug != Bug::kNoWarpBarrier) __syncwarp();
  if (i < count) out[i] = seen[threadIdx.x] + seen[threadIdx.x ^ 1];
}

}  // namespace

template <Bug kBug>
cudaError_t RunPlanted(float* out, const float* in, int rows, int columns) {
  cudaError_t error = cudaSuccess;
  if constexpr (kBug == Bug::kNone || kBug == Bug::kNoBarrier || kBug == Bug::kSharedOutOfBounds ||
                kBug == Bug::kDivergentBarrier) {
    error = Launch(Transpose<kBug>, dim3((columns + 31) / 32, (rows + 31) / 32), dim3(32, 8), 0,
                   nullptr, out, in, rows, columns);
  }
  if constexpr (kBug == Bug::kNone || kBug == Bug::kNoBarrierBeforeReuse ||
                kBug == Bug::kGlobalOutOfBounds || kBug == Bug::kShuffleInHalfAWarp) {
    if (error == cudaSuccess) {
      error = Launch(Normalise<kBug>, rows, 128, 0, nullptr, out, in, columns);
    }
  }
  if constexpr (kBug == Bug::kNone || kBug == Bug::kNoWarpBarrier) {
    const int count = rows * columns;
    if (error == cudaSuccess) {
      error = Launch(AddNeighbour<kBug>, (count + 127) / 128, 128, 0, nullptr, out, in, count);
    }
  }
  return error;
}

template cudaError_t RunPlanted<Bug::kNone>(float*, const float*, int, int);
template cudaError_t RunPlanted<Bug::kNoBarrier>(float*, const float*, int, int);
template cudaError_t RunPlanted<Bug::kNoBarrierBeforeReuse>(float*, const float*, int, int);
template cudaError_t RunPlanted<Bug::kNoWarpBarrier>(float*, const float*, int, int);
template cudaError_t RunPlanted<Bug::kSharedOutOfBounds>(float*, const float*, int, int);
template cudaError_t RunPlanted<Bug::kGlobalOutOfBounds>(float*, const float*, int, int);
template cudaError_t RunPlanted<Bug::kDivergentBarrier>(float*, const float*, int, int);
template cudaError_t RunPlanted<Bug::kShuffleInHalfAWarp>(float*, const float*, int, int);

}  // namespace headrace::emulation
