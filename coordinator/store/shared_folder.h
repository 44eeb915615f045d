// Slices of checkpoints that lie in a folder which coordinator and workers share, each named by its
// URI: "file:///mnt/shared/j7/120/0-4-<sha256>.safetensors".
#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// INVALID_ARGUMENT: not "file://" and an absolute path without "..".
absl::StatusOr<std::string> PathOfUri(const std::string& uri);

// Whether the slice is whole. Reads every byte; `stop` set to true makes it end early.
//   NOT_FOUND  there is no such file, or the folder is not to be reached
//   DATA_LOSS  it has another size or another hash
//   CANCELLED  stopped
absl::Status CheckSharedSlice(const v1::WeightsSlice& slice, const std::atomic<bool>& stop);

// The file, and the folders of its step and its job if they are empty then. Nothing to do if there
// is none.
absl::Status RemoveSharedFile(const std::string& uri);

}  // namespace headrace
