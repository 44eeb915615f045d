// How a mini-batch splits into micro-batches. Sizes differ by at most one sequence, larger ones
// first; each weighs in the loss by its tokens, so the split changes no mean.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace headrace {

// sizes[m]: sequences in micro-batch m; sums to `batch_size`.
// INVALID_ARGUMENT: micro_batches < 1, or > batch_size (the message names both and the right
// range).
absl::StatusOr<std::vector<int64_t>> SplitBatch(int64_t batch_size, int64_t micro_batches);

}  // namespace headrace
