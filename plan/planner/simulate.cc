#include "plan/planner/simulate.h"

#include <algorithm>
#include <cstddef>

#include "common/status.h"

namespace headrace {

absl::StatusOr<Simulation> Simulate(const Schedule& schedule, int micro_batches,
                                    const ReplayOptions& options) {
  for (size_t k = 0; k < schedule.size(); ++k) {
    HEADRACE_RETURN_IF_ERROR(CheckActions(schedule[k], static_cast<int>(k), micro_batches));
  }
  const Replay replay = ReplaySchedule(schedule, micro_batches, options);
  if (!replay.waiting.empty()) return CheckSchedule(schedule, micro_batches, options.credits);

  Simulation simulation;
  double busy_s = 0;
  for (size_t k = 0; k < schedule.size(); ++k) {
    StageUse use;
    for (const ActionTime& time : replay.times[k]) use.busy_s += time.end_s - time.start_s;
    use.peak = StashLevels(schedule[k]);
    busy_s += use.busy_s;
    simulation.step_s = std::max(simulation.step_s, replay.times[k].back().end_s);
    simulation.stages.push_back(std::move(use));
  }
  for (StageUse& use : simulation.stages) use.idle_s = simulation.step_s - use.busy_s;
  const double available_s = simulation.step_s * static_cast<double>(schedule.size());
  if (available_s > 0) simulation.bubble = 1 - busy_s / available_s;
  return simulation;
}

}  // namespace headrace
