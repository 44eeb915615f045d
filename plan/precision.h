// What the inputs of matrix products are rounded to. Sums, weights, gradients, the optimizer, norms
// and softmax are fp32 in each (docs/numerics.md).
#pragma once

#include <cstdint>

namespace headrace {

enum class Precision {
  kFp32,
  kBf16,          // by the processor's bf16 instructions
  kBf16Emulated,  // the same inputs, multiplied in fp32; on any processor, and the same on all
};

// A bf16 product rounds and packs its inputs a block at a time into two panels of each thread
// (worker/backend/cpu/bf16_panels.h): 768 by 1024 numbers of the one, 224 rows of 400 pairs of the
// other. No tensor is kept in bf16 beside its fp32, so this is all the memory the precision costs.
inline constexpr int64_t kBf16PanelBytes = 2 * 768 * 1024 + 4 * 224 * 400;

inline int64_t PanelBytes(Precision precision, int threads) {
  return precision == Precision::kFp32 ? 0 : threads * kBf16PanelBytes;
}

}  // namespace headrace
