// What the inputs of matrix products are rounded to. Sums, weights, gradients, the optimizer, norms
// and softmax are fp32 in each (docs/numerics.md).
#pragma once

#include "headrace/v1/job.pb.h"

namespace headrace {

enum class Precision {
  kFp32,
  kBf16,          // by the processor's bf16 instructions
  kBf16Emulated,  // the same inputs, multiplied in fp32; on any processor, and the same on all
};

// `training` has passed ValidateJob.
inline Precision PrecisionOf(const v1::TrainingSpec& training) {
  if (training.precision() != v1::PRECISION_BF16) return Precision::kFp32;
  return training.bf16_emulate() ? Precision::kBf16Emulated : Precision::kBf16;
}

}  // namespace headrace
