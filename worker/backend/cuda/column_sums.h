// Sums over the rows of a [n, width] tensor, for parameter gradients, in two launches:
//
//   1. a block takes kRowLanes · … rows and 32 packs of columns; a thread adds its rows in
//   ascending
//      order, the block adds its threads' sums in ascending order        →
//      scratch[chunk][sum][width]
//   2. a thread takes a column and adds the chunks in ascending order    → += the gradient
//
// A Term says what is summed:
//   using Element = float or Bf16;  static constexpr int kSums;
//   __device__ void operator()(int64_t row, int64_t column, int64_t left, Floats<Element>
//   (&s)[kSums])
// adds row `row`'s terms of the pack that begins at `column`, of which `left` columns exist.
#pragma once

#include "worker/backend/cuda/pack.h"

namespace headrace::cuda {

inline constexpr int kRowLanes = 8;
inline constexpr int64_t kMostChunks = 128;

// Rows of a chunk: at least 64, a multiple of kRowLanes.
inline int64_t ChunkRows(int64_t n) {
  const int64_t rows = (n + kMostChunks - 1) / kMostChunks;
  return rows <= 64 ? 64 : (rows + kRowLanes - 1) / kRowLanes * kRowLanes;
}
inline int64_t NumChunks(int64_t n) { return (n + ChunkRows(n) - 1) / ChunkRows(n); }

template <typename Term>
__global__ void __launch_bounds__(32 * kRowLanes)
    ChunkSumsKernel(Term term, float* scratch, int64_t n, int64_t width, int64_t chunk_rows) {
  using T = typename Term::Element;
  constexpr int kSums = Term::kSums;
  HEADRACE_SHARED(float, part, [kRowLanes][kSums][32 * kPack<T>]);
  const int64_t first = blockIdx.x * int64_t{32 * kPack<T>};
  const int64_t column = first + threadIdx.x * kPack<T>;
  const int64_t begin = blockIdx.y * chunk_rows, end = min(n, begin + chunk_rows);
  Floats<T> sums[kSums] = {};
  if (column < width) {
    for (int64_t row = begin + threadIdx.y; row < end; row += kRowLanes) {
      term(row, column, width - column, sums);
    }
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      part[threadIdx.y][s][threadIdx.x * kPack<T> + k] = sums[s].at[k];
    }
  }
  __syncthreads();
  for (int i = threadIdx.y * 32 + threadIdx.x; i < kSums * 32 * kPack<T>; i += 32 * kRowLanes) {
    const int s = i / (32 * kPack<T>), j = i % (32 * kPack<T>);
    float sum = 0;
#pragma unroll
    for (int y = 0; y < kRowLanes; ++y) sum += part[y][s][j];
    if (first + j < width) {
      scratch[(static_cast<int64_t>(blockIdx.y) * kSums + s) * width + first + j] = sum;
    }
  }
}

// out[s][j] += Σ chunks. `out2` is the second sum's, null without one. A template, so that each
// file that includes this has its own.
template <int kSums>
__global__ void AddChunksKernel(const float* scratch, float* out, float* out2, int64_t chunks,
                                int64_t width) {
  for (int64_t i = GlobalThread(); i < kSums * width; i += AllThreads()) {
    const int64_t s = i / width, j = i % width;
    float sum = 0;
    for (int64_t c = 0; c < chunks; ++c) sum += scratch[(c * kSums + s) * width + j];
    (s == 0 ? out : out2)[j] += sum;
  }
}

template <typename Term>
cudaError_t AddColumnSums(const Term& term, float* out, float* out2, int64_t n, int64_t width,
                          float* scratch, cudaStream_t stream) {
  constexpr int64_t kColumns = 32 * kPack<typename Term::Element>;
  const dim3 blocks(static_cast<unsigned>((width + kColumns - 1) / kColumns),
                    static_cast<unsigned>(NumChunks(n)));
  const cudaError_t error = Launch(ChunkSumsKernel<Term>, blocks, dim3(32, kRowLanes), 0, stream,
                                   term, scratch, n, width, ChunkRows(n));
  if (error != cudaSuccess) return error;
  return Launch(AddChunksKernel<Term::kSums>, BlocksFor(Term::kSums * width), kThreads, 0, stream,
                scratch, out, out2, NumChunks(n), width);
}

}  // namespace headrace::cuda
