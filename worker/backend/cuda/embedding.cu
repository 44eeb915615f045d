#include "worker/backend/cuda/kernels.h"

namespace headrace::cuda {
namespace {

constexpr int kBlock = 128;  // threads, and tokens looked at together, of the backward kernel

template <typename T>
__global__ void EmbeddingKernel(const int32_t* ids, const float* wte, const float* wpe, T* y,
                                int64_t n, int64_t length, int64_t width) {
  const int64_t packs = (width + kPack<T> - 1) / kPack<T>;
  for (int64_t i = GlobalThread(); i < n * packs; i += AllThreads()) {
    const int64_t t = i / packs, j = i % packs * kPack<T>;
    Floats<T> sum = LoadFloats<T>(wte + ids[t] * width + j, width - j);
    if (wpe != nullptr) {
      const Floats<T> position = LoadFloats<T>(wpe + t % length * width + j, width - j);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) sum.at[k] += position.at[k];
    }
    Pack<T> out;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) out.at[k] = FromFloat<T>(sum.at[k]);
    Store(y + t * width + j, width - j, out);
  }
}

// Adds rows dy[tokens[0, num)] to `gradient`, in this order.
template <typename T>
__device__ void AddRows(const T* dy, const int* tokens, int num, float* gradient, int64_t width) {
  for (int64_t j = threadIdx.x * kPack<T>; j < width; j += kBlock * kPack<T>) {
    Floats<T> sum = LoadFloats<T>(gradient + j, width - j);
    for (int s = 0; s < num; ++s) {
      const Pack<T> row = Load(dy + tokens[s] * width + j, width - j);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) sum.at[k] += ToFloat(row.at[k]);
    }
    StoreFloats<T>(gradient + j, width - j, sum);
  }
}

// One block a token. The first token with an id adds the rows of all that have it, in ascending
// order; the blocks of the others find an earlier one and leave. No two blocks share a row.
template <typename T>
__global__ void TokenGradientKernel(const int32_t* ids, const T* dy, float* dwte, int64_t n,
                                    int64_t width) {
  HEADRACE_SHARED(int, found, [kBlock]);
  HEADRACE_SHARED(int, counts, [kBlock / 32 + 1]);
  const int64_t first = blockIdx.x;
  const int32_t id = ids[first];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bool earlier = false;
  for (int64_t t = threadIdx.x; t < first; t += kBlock) earlier = earlier || ids[t] == id;
  const unsigned votes = __ballot_sync(~0u, earlier);
  if (lane == 0) counts[warp] = votes != 0;
  __syncthreads();
  for (int w = 0; w < kBlock / 32; ++w) {
    if (counts[w] != 0) return;
  }
  for (int64_t from = first; from < n; from += kBlock) {
    const int64_t t = from + threadIdx.x;
    const bool same = t < n && ids[t] == id;
    const unsigned here = __ballot_sync(~0u, same);
    __syncthreads();  // the last round's list is read
    if (lane == 0) counts[warp] = __popc(here);
    __syncthreads();
    int before = __popc(here & ((1u << lane) - 1)), num = 0;
    for (int w = 0; w < kBlock / 32; ++w) {
      if (w < warp) before += counts[w];
      num += counts[w];
    }
    if (same) found[before] = static_cast<int>(t);
    __syncthreads();
    if (num > 0) AddRows(dy, found, num, dwte + id * width, width);
  }
}

// One thread a pack of a position's row: the sequences in ascending order.
template <typename T>
__global__ void PositionGradientKernel(const T* dy, float* dwpe, int64_t sequences, int64_t length,
                                       int64_t width) {
  const int64_t packs = (width + kPack<T> - 1) / kPack<T>;
  for (int64_t i = GlobalThread(); i < length * packs; i += AllThreads()) {
    const int64_t p = i / packs, j = i % packs * kPack<T>;
    Floats<T> sum = LoadFloats<T>(dwpe + p * width + j, width - j);
    for (int64_t s = 0; s < sequences; ++s) {
      const Pack<T> row = Load(dy + (s * length + p) * width + j, width - j);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) sum.at[k] += ToFloat(row.at[k]);
    }
    StoreFloats<T>(dwpe + p * width + j, width - j, sum);
  }
}

}  // namespace

template <typename T>
cudaError_t Embedding(const int32_t* ids, const float* wte, const float* wpe, T* y, int64_t n,
                      int64_t length, int64_t width, cudaStream_t stream) {
  if (n == 0 || width == 0) return cudaSuccess;
  const int64_t packs = (width + kPack<T> - 1) / kPack<T>;
  return Launch(EmbeddingKernel<T>, BlocksFor(n * packs), kThreads, 0, stream, ids, wte, wpe, y, n,
                length, width);
}

template <typename T>
cudaError_t EmbeddingBackward(const int32_t* ids, const T* dy, float* dwte, float* dwpe, int64_t n,
                              int64_t length, int64_t width, cudaStream_t stream) {
  if (n == 0 || width == 0) return cudaSuccess;
  const cudaError_t error = Launch(TokenGradientKernel<T>, static_cast<unsigned>(n), kBlock, 0,
                                   stream, ids, dy, dwte, n, width);
  if (error != cudaSuccess || dwpe == nullptr) return error;
  const int64_t packs = (width + kPack<T> - 1) / kPack<T>;
  return Launch(PositionGradientKernel<T>, BlocksFor(length * packs), kThreads, 0, stream, dy, dwpe,
                n / length, length, width);
}

template cudaError_t Embedding<float>(const int32_t*, const float*, const float*, float*, int64_t,
                                      int64_t, int64_t, cudaStream_t);
template cudaError_t Embedding<Bf16>(const int32_t*, const float*, const float*, Bf16*, int64_t,
                                     int64_t, int64_t, cudaStream_t);
template cudaError_t EmbeddingBackward<float>(const int32_t*, const float*, float*, float*, int64_t,
                                              int64_t, int64_t, cudaStream_t);
template cudaError_t EmbeddingBackward<Bf16>(const int32_t*, const Bf16*, float*, float*, int64_t,
                                             int64_t, int64_t, cudaStream_t);

}  // namespace headrace::cuda
