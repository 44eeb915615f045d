#include "tests/cuda_emulation/emulation_test.h"
#include "worker/backend/cuda/launch.h"
#include "worker/backend/cuda/mma.h"

namespace headrace::emulation {
namespace {

using cuda::Launch;

__global__ void NumberThreadsKernel(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
  out[i] = static_cast<int>(i);
}

__global__ void CollectivesKernel(uint32_t* out) {
  const uint32_t lane = threadIdx.x;
  out[lane] = __shfl_sync(~0u, lane * 10, 5);
  out[32 + lane] = __shfl_xor_sync(~0u, lane * 10, 3);
  out[64 + lane] = __shfl_down_sync(~0u, lane * 10, 4);
  out[96 + lane] = __ballot_sync(~0u, lane % 2);
}

__global__ void MultiplyTileKernel(float* d, const uint16_t* a, const uint16_t* b,
                                   bool through_ldmatrix) {
  HEADRACE_SHARED(uint16_t, sa, [16][24]);
  HEADRACE_SHARED(uint16_t, sb, [16][8]);
  const int lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
  for (int i = lane; i < 256; i += 32) sa[i / 16][i % 16] = a[i];
  for (int i = lane; i < 128; i += 32) sb[i / 8][i % 8] = b[i];
  __syncwarp();
  uint32_t fa[4], fb[4];
  if (through_ldmatrix) {
    cuda::LoadMatrices(fa, &sa[lane % 16][lane / 16 * 8]);
    cuda::LoadMatricesTransposed(fb, &sb[lane % 16][0]);
  } else {
    for (int r = 0; r < 4; ++r) {
      const uint16_t* from = &sa[group + r % 2 * 8][pair + r / 2 * 8];
      fa[r] = from[0] | static_cast<uint32_t>(from[1]) << 16;
    }
    for (int r = 0; r < 2; ++r) {
      fb[r] = sb[pair + r * 8][group] | static_cast<uint32_t>(sb[pair + 1 + r * 8][group]) << 16;
    }
  }
  float sum[4] = {};
  cuda::MmaBf16(sum, fa, fb[0], fb[1]);
  for (int c = 0; c < 4; ++c) d[(group + c / 2 * 8) * 8 + pair + c % 2] = sum[c];
}

__global__ void SharedBeginsAsNanKernel(int* out, int count) {
  HEADRACE_DYNAMIC_SHARED(float, dynamic);
  HEADRACE_SHARED(float, fixed, [4]);
  if (threadIdx.x != 0) return;
  int nans = 0;
  for (int i = 0; i < count; ++i) nans += dynamic[i] != dynamic[i];
  for (int i = 0; i < 4; ++i) nans += fixed[i] != fixed[i];
  out[0] = nans == count + 4;
}

__global__ void AddOneKernel(float* x, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) x[i] += 1;
}

}  // namespace

cudaError_t NumberThreads(int* out, dim3 blocks, dim3 threads, cudaStream_t stream) {
  return Launch(NumberThreadsKernel, blocks, threads, 0, stream, out);
}
cudaError_t Collectives(uint32_t* out) { return Launch(CollectivesKernel, 1, 32, 0, nullptr, out); }
cudaError_t MultiplyTile(float* d, const uint16_t* a, const uint16_t* b, bool through_ldmatrix) {
  return Launch(MultiplyTileKernel, 1, 32, 0, nullptr, d, a, b, through_ldmatrix);
}
cudaError_t SharedBeginsAsNan(int* out, int threads, size_t shared_bytes) {
  return Launch(SharedBeginsAsNanKernel, 1, threads, shared_bytes, nullptr, out,
                static_cast<int>(shared_bytes / sizeof(float)));
}
cudaError_t AddOne(float* x, int count, cudaStream_t stream) {
  return Launch(AddOneKernel, (count + 63) / 64, 64, 0, stream, x, count);
}

}  // namespace headrace::emulation
