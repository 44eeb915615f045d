// Which part of a job's kept trace answers a request. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "headrace/v1/cluster.pb.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// One page of the chunks that touch the steps asked for (0 to 0: the job's last step that is kept).
// `job` needs id, state and step.
//   INVALID_ARGUMENT     not a range
//   FAILED_PRECONDITION  the job has done no step, or one of these is not kept: says which are
absl::StatusOr<v1::ListJobTracesResponse> PageOfTrace(const v1::Job& job, v1::JobTrace trace,
                                                      const v1::ListJobTracesRequest& request);

}  // namespace headrace
