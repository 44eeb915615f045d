// weights_sha256 of a job: SHA-256 over the parameters' bytes of all its slices in layer order.
// Where the slices are cut, and so K, does not show in it.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/store/blob_store.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// Reads every byte, so it may take seconds; `stop` set to true makes it end early.
//   NOT_FOUND          a slice is not in the store
//   INVALID_ARGUMENT   a slice has another size than announced, or is no safetensors file
//   CANCELLED          stopped
absl::StatusOr<std::string> HashWeightsSlices(const BlobStore& blobs,
                                              const std::vector<v1::WeightsSlice>& slices,
                                              const std::atomic<bool>& stop);

}  // namespace headrace
