// What to say when a job does not fit: what is missing where, and what would help. Nothing is
// suggested that was not planned and found to fit.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "headrace/v1/job.pb.h"
#include "plan/planner/planner.h"

namespace headrace {

// FAILED_PRECONDITION. `spec` fits `workers` with none of the numbers of stages it allows.
absl::Status ExplainMisfit(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers);
// The same for `generate`, where only other workers help.
absl::Status ExplainGenerateMisfit(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers);

}  // namespace headrace
