// Moves blobs to and from the coordinator's store in chunks of 1 MiB, resuming where an earlier try
// stopped. Used by the client (data, weights) and the worker (data, weights).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "headrace/v1/cluster.grpc.pb.h"

namespace headrace {

// Told after every chunk: bytes sent (not always arrived) and in all.
using TransferProgress = std::function<void(int64_t done, int64_t total)>;

// Both end at once, with CANCELLED, when `cancellation` (may be null) is cancelled.

// Returns at once if the store has the blob. The file's hash must be `sha256`. `progress` may be
// empty.
//   DEADLINE_EXCEEDED, UNAVAILABLE  after retries until `deadline`
absl::Status UploadBlob(v1::CoordinatorService::StubInterface* stub, const std::string& path,
                        const std::string& sha256, absl::Time deadline,
                        Cancellation* cancellation = nullptr,
                        const TransferProgress& progress = {});

// Leaves the whole, verified blob at `path` (or nothing). Returns at once if it is there.
absl::Status DownloadBlob(v1::CoordinatorService::StubInterface* stub, const std::string& sha256,
                          const std::string& path, absl::Time deadline,
                          Cancellation* cancellation = nullptr);

}  // namespace headrace
