// A checkpoint's store that is a folder which all machines see under one path, such as NFS:
//
//   <folder>/<job>/<step>/<first layer>-<end layer>-<sha256>.safetensors
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/cancellation.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// "file:///…": the path; INVALID_ARGUMENT: it is no such address, or the path is not absolute.
absl::StatusOr<std::string> PathOfFolder(const std::string& uri);

// Copies the file at `path` there, whole or not at all, synced, and says in slice->uri where it is.
//   the system's error  names the path
//   CANCELLED           `cancellation` was cancelled; nothing is left there
absl::Status CopyToFolder(const std::string& folder_uri, const std::string& job_id, int64_t step,
                          const std::string& path, v1::WeightsSlice* slice,
                          const Cancellation* cancellation);

}  // namespace headrace
