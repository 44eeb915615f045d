// Tensor-core instructions behind functions, so that tests/cuda_emulation can give each its
// meaning. All 32 lanes of a warp call them together. With g = lane / 4 and t = lane % 4, a lane
// holds
//
//   a[16×16], row-major   a[0]: (g, 2t)       a[1]: (g + 8, 2t)
//                         a[2]: (g, 2t + 8)   a[3]: (g + 8, 2t + 8), each with its right neighbour
//   b[16×8]               b0: (2t, g)         b1: (2t + 8, g), each with its lower neighbour
//   d[16×8], fp32         d[0], d[1]: (g, 2t), (g, 2t + 1)      d[2], d[3]: the same of row g + 8
//
// (PTX ISA, "Matrix Fragments for mma.m16n8k16".) A d of two neighbouring products, packed, is an
// a: this is how a product's result becomes the next one's input without leaving registers.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/launch.h"

namespace headrace::cuda {

#ifdef HEADRACE_CUDA_EMULATION

inline void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                    HEADRACE_CALLER) {
  emulation::MmaBf16(d, a, b0, b1, {"mma.sync", file, line});
}
inline void LoadMatrices(uint32_t (&r)[4], const void* row, HEADRACE_CALLER) {
  uint16_t values[8];
  for (int i = 0; i < 8; ++i) values[i] = static_cast<const uint16_t*>(row)[i];
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  emulation::LoadMatrices(r, values, aligned, false, {"ldmatrix", file, line});
}
inline void LoadMatricesTransposed(uint32_t (&r)[4], const void* row, HEADRACE_CALLER) {
  uint16_t values[8];
  for (int i = 0; i < 8; ++i) values[i] = static_cast<const uint16_t*>(row)[i];
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  emulation::LoadMatrices(r, values, aligned, true, {"ldmatrix.trans", file, line});
}

#else

// d += a · b
__device__ inline void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8×8 matrices of 16-bit numbers from shared memory: lane l gives the address, a multiple of
// 16 bytes, of row l mod 8 of matrix l / 8; r[j] is the lane's pair of matrix j, at (g, 2t).
__device__ inline void LoadMatrices(uint32_t (&r)[4], const void* row) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// The same with each matrix transposed: r[j] holds (2t, g) and (2t + 1, g) of matrix j.
__device__ inline void LoadMatricesTransposed(uint32_t (&r)[4], const void* row) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

#endif

// Two floats rounded to bfloat16 in one register, `low` in the lower half.
__device__ inline uint32_t PackBf16(float low, float high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16(low))) |
         static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16(high))) << 16;
}

}  // namespace headrace::cuda
