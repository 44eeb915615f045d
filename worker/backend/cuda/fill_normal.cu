#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/random.h"

namespace headrace::cuda {
namespace {

// Box–Muller in double: two uniform numbers in (0, 1) give two normal ones.
__device__ void NormalPair(uint32_t a, uint32_t b, double std, float* pair) {
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-32;
  const double v = (static_cast<double>(b) + 0.5) * 0x1p-32;
  const double radius = std * sqrt(-2.0 * log(u));
  const double angle = 2.0 * 3.141592653589793 * v;
  pair[0] = static_cast<float>(radius * cos(angle));
  pair[1] = static_cast<float>(radius * sin(angle));
}

// Elements 4b … 4b + 3 come from block b.
__global__ void FillNormalKernel(float* x, int64_t count, double std, Stream stream) {
  for (int64_t i = GlobalThread() * 4; i < count; i += AllThreads() * 4) {
    const Block random = RandomBlock(stream, static_cast<uint64_t>(i / 4));
    Pack<float> out;
    NormalPair(random.at[0], random.at[1], std, out.at);
    NormalPair(random.at[2], random.at[3], std, out.at + 2);
    Store(x + i, count - i, out);
  }
}

}  // namespace

cudaError_t FillNormal(float* x, int64_t count, float std, const RandomStream& stream_of,
                       cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(FillNormalKernel, BlocksFor((count + 3) / 4), kThreads, 0, stream, x, count,
                static_cast<double>(std), DeviceStream(stream_of));
}

}  // namespace headrace::cuda
