// How many stages a job gets that leaves it to the planner.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/planner/planner.h"
#include "plan/planner/stage_table.h"
#include "plan/planner/trial.h"

namespace headrace {

// Numbers of stages that are all tried. Of more, those that grow by a fifth are estimated
// (Trials::Estimate), then those around the best one until its neighbours differ by 2 %, and the
// two best are tried.
inline constexpr int kMaxStagesTried = 32;

// Training: the fastest plan with `first` to `last` stages; of equally fast ones that with fewer.
// Generate: the plan with the fewest stages that fit. Nothing fits: nullopt.
absl::StatusOr<std::optional<Trial>> FindFastest(const JobShape& job,
                                                 const std::vector<PlanWorker>& workers, int first,
                                                 int last);

}  // namespace headrace
