// What links cost a plan, and how many micro-batches would hide them.
//
// However a schedule orders its actions, the first micro-batch must get to the busiest stage before
// that can begin, and its last gradient back to stage 0: up to 2 (K − 1) ways, once a step. More
// micro-batches of the same size make the step longer and leave that as it is.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "headrace/v1/job.pb.h"
#include "plan/planner/planner.h"
#include "plan/planner/stage_table.h"
#include "plan/planner/trial.h"

namespace headrace {

// Of a step; above it, something is advised.
inline constexpr double kExposedShare = 0.05;

// Fills in `plan`'s exposed_s and, with `advice` given, its link_advice: the least power of two
// times the job's micro-batches, up to 16, with which links cost at most kExposedShare of a step,
// found by planning again with as many stages, or the most that helps by half and fits. Leaves both
// alone where replays would take too long (200,000 actions). `trial` is the plan's. Errors as
// Simulate: none, for a schedule that ran.
absl::Status AdviseOnLinks(const JobShape& job, const std::vector<PlanWorker>& workers,
                           const Trial& trial, Advice advice, v1::Plan* plan);

}  // namespace headrace
