// Checks of a job's sections `checkpoint` and `recovery`: parts of ValidateJob.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// The folder behind checkpoint.store: "/mnt/checkpoints" of "file:///mnt/checkpoints"; "" of "",
// the coordinator's own store. The path is taken as it stands, without %-escapes.
//   INVALID_ARGUMENT  "checkpoint.store: …", with what works instead
absl::StatusOr<std::string> StoreFolder(const std::string& store);

// INVALID_ARGUMENT as ValidateJob.
absl::Status CheckCheckpoint(const v1::CheckpointSpec& spec);
absl::Status CheckRecovery(const v1::RecoverySpec& spec, const v1::CheckpointSpec& checkpoint);

}  // namespace headrace
