// What a warp's lanes compute together: shuffles, votes, tensor-core products. Called by kernels
// through device_functions.h and worker/backend/cuda/mma.h.
//
// Fragment layouts are the PTX ISA's as read ("Matrix Fragments for mma.m16n8k16", ldmatrix) and
// unproven on hardware; products are added one after the other in fp32, which a tensor core does
// in an order of its own.
#pragma once

#include <cstdint>
#include <cstring>

#include "tests/cuda_emulation/grid.h"

namespace headrace::emulation {

// Lane `source`'s bits; a source outside the mask abandons the grid.
uint64_t ShuffleBits(unsigned mask, uint64_t value, int source, Site site);

template <typename T>
T Shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ShuffleBits(mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Bit l is set if lane l's `predicate` is.
unsigned Ballot(unsigned mask, bool predicate, Site site);

// Only a meeting of the lanes; orders memory among them.
void SyncWarp(unsigned mask, Site site);

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: d += a · b.
void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site);
// ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16: four 8×8 matrices, lane l gives row l mod 8 of
// matrix l / 8, at an address that must be a multiple of 16 bytes. The row is read by the caller,
// so that the sanitizers see it as the kernel's.
void LoadMatrices(uint32_t (&r)[4], const uint16_t (&row)[8], bool aligned, bool transposed,
                  Site site);

}  // namespace headrace::emulation
