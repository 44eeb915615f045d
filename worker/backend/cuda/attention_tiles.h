// Tiles of 64 rows of a head in shared memory, and the operands that mma.sync takes from them.
//
// A row is kSize + 8 numbers long: the eight rows of an ldmatrix then lie in different banks.
// With `tile` stored [row][column]:
//   LoadA    a 16 × 16 left operand: a(m, k) = tile[row + m][column + k]
//   LoadB    two 16 × 8 right operands whose columns are the tile's rows:
//            b(k, n) = tile[row + n][column + k]; r[0], r[1]: rows row … + 7, r[2], r[3]: the next
//            8
//   LoadBt   two 16 × 8 right operands as they lie:
//            b(k, n) = tile[row + k][column + n]; r[0], r[1]: columns column … + 7, r[2], r[3]: the
//            next 8
#pragma once

#include "worker/backend/cuda/attention_shape.h"
#include "worker/backend/cuda/mma.h"

namespace headrace::cuda {

inline constexpr int kTileRows = 64;
inline constexpr int kTileThreads = 128;  // four warps, 16 rows each

template <int kSize>
using TileRow = Bf16[kSize + 8];

// Rows first … first + 63 of `from`; 0 beyond `length`. All threads of the block.
template <int kSize>
__device__ inline void LoadTile(TileRow<kSize>* tile, const Bf16* from, int stride, int first,
                                int length) {
  constexpr int kPacks = kSize / kPack<Bf16>;
  for (int i = threadIdx.x; i < kTileRows * kPacks; i += kTileThreads) {
    const int r = i / kPacks, c = i % kPacks * kPack<Bf16>;
    Pack<Bf16> pack = {};
    if (first + r < length) pack = Load(from + int64_t{first + r} * stride + c, kPack<Bf16>);
    *reinterpret_cast<Pack<Bf16>*>(&tile[r][c]) = pack;
  }
}

template <int kSize>
__device__ inline void LoadA(uint32_t (&r)[4], const TileRow<kSize>* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(r, &tile[row + lane % 16][column + lane / 16 * 8]);
}
template <int kSize>
__device__ inline void LoadB(uint32_t (&r)[4], const TileRow<kSize>* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(r, &tile[row + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]);
}
template <int kSize>
__device__ inline void LoadBt(uint32_t (&r)[4], const TileRow<kSize>* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  LoadMatricesTransposed(r, &tile[row + lane % 16][column + lane / 16 * 8]);
}

// Two neighbouring 16 × 8 results as the 16 × 16 left operand of the next product.
__device__ inline void PackA(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = PackBf16(left[0], left[1]);
  a[1] = PackBf16(left[2], left[3]);
  a[2] = PackBf16(right[0], right[1]);
  a[3] = PackBf16(right[2], right[3]);
}

// Two neighbouring numbers to memory, 4 bytes at once where the address allows.
__device__ inline void StorePair(Bf16* to, float left, float right) {
  if (reinterpret_cast<uintptr_t>(to) % 4 == 0) {
    *reinterpret_cast<uint32_t*>(to) = PackBf16(left, right);
    return;
  }
  to[0] = __float2bfloat16(left);
  to[1] = __float2bfloat16(right);
}

// sum += a · tile[row … row + 15], all kSize columns.
template <int kSize>
__device__ inline void MultiplyAdd(float (&sum)[kSize / 8][4], const uint32_t (&a)[4],
                                   const TileRow<kSize>* tile, int row) {
#pragma unroll
  for (int d = 0; d < kSize / 8; d += 2) {
    uint32_t b[4];
    LoadBt<kSize>(b, tile, row, d * 8);
    MmaBf16(sum[d], a, b[0], b[1]);
    MmaBf16(sum[d + 1], a, b[2], b[3]);
  }
}

}  // namespace headrace::cuda
