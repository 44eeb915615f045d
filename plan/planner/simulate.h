// What a schedule is worth: replays it with costs (plan/replay.h) and sums up. The test oracle for
// schedules, and how the planner compares plans. Linear in the number of actions.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "plan/replay.h"
#include "plan/schedule_check.h"
#include "plan/stage_memory.h"

namespace headrace {

struct StageUse {
  double busy_s = 0;  // in F, R and B
  double idle_s =
      0;  // the rest of the step: waiting, or before its first and after its last action
  std::vector<StashLevel> peak;  // StashLevels of its list
};

struct Simulation {
  double step_s =
      0;  // first start to last end, without optimizer, norm and tie, which every plan has
  double bubble = 0;  // idle share of all stages' time
  std::vector<StageUse> stages;
};

//   INVALID_ARGUMENT     a stage's list breaks a rule (CheckActions)
//   FAILED_PRECONDITION  deadlock (CheckSchedule)
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, int micro_batches,
                                    const ReplayOptions& options);

}  // namespace headrace
