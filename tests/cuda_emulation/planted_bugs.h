// Kernels with one error each, to show that the emulation under the sanitizers catches it.
//
// | error                    | plain         | ASan + UBSan | TSan         |
// |--------------------------|---------------|--------------|--------------|
// | kNoBarrier               | wrong values  | wrong values | a race       |
// | kNoBarrierBeforeReuse    | –             | –            | a race       |
// | kNoWarpBarrier           | –             | –            | a race       |
// | kSharedOutOfBounds       | –             | the access   | –            |
// | kGlobalOutOfBounds       | –             | the access   | –            |
// | kDivergentBarrier        | both sites    | both sites   | both sites   |
// | kShuffleInHalfAWarp      | both sites    | both sites   | both sites   |
#pragma once

#include <cuda_runtime.h>

namespace headrace::emulation {

enum class Bug {
  kNone,
  kNoBarrier,
  kNoBarrierBeforeReuse,
  kNoWarpBarrier,
  kSharedOutOfBounds,
  kGlobalOutOfBounds,
  kDivergentBarrier,
  kShuffleInHalfAWarp,
};

// Runs the kernel with the error on in[rows, columns]; kNone runs all of them without one.
// out: as many floats.
template <Bug kBug>
cudaError_t RunPlanted(float* out, const float* in, int rows, int columns);

}  // namespace headrace::emulation
