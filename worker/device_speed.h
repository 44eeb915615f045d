// How fast a CUDA device is, for the planner's first guess: layers of a job are measured later.
#pragma once

#include "absl/status/statusor.h"
#include "worker/backend/compute_device.h"

namespace headrace {

// FLOP/s of a transformer block's forward and backward, in bf16 if asked for: of a small one, and
// where that is done at once of larger ones. Takes about a second. Errors as TimeLayer.
absl::StatusOr<double> MeasureCudaFlops(const DeviceOpener& open, bool bf16);

}  // namespace headrace
