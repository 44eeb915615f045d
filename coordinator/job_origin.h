// Whether a job can begin from another one's checkpoint. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "coordinator/store/job_store.h"
#include "headrace/v1/cluster.pb.h"

namespace headrace {

// The checkpoint of `from` (with its checkpoints) that the request means.
//   FAILED_PRECONDITION  it has none of that step, or none that is sound; says which there are
//   INVALID_ARGUMENT     its state does not fit the new job: another model, another kind of
//                        optimizer, simulated and real, or no step is left to do
absl::StatusOr<v1::Checkpoint> CheckOrigin(const v1::SubmitJobRequest& request,
                                           const StoredJob& from);

}  // namespace headrace
