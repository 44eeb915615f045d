// What to say when a job does not fit: what is missing where, and what would help. Nothing is
// suggested that was not planned and found to fit. Few plans are tried: the whole takes some ten
// times as long as one of them.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "headrace/v1/job.pb.h"
#include "plan/planner/planner.h"
#include "plan/planner/stage_table.h"

namespace headrace {

// FAILED_PRECONDITION. `spec`, which is `job`, fits `workers` with none of the numbers of stages it
// allows.
absl::Status ExplainMisfit(const v1::JobSpec& spec, const JobShape& job,
                           const std::vector<PlanWorker>& workers, Advice advice);
// The same for `generate`, where only other workers help.
absl::Status ExplainGenerateMisfit(const JobShape& job, const std::vector<PlanWorker>& workers);

}  // namespace headrace
