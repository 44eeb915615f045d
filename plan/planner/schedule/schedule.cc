#include "plan/planner/schedule/schedule.h"

#include "plan/planner/schedule/gpipe.h"
#include "plan/planner/schedule/one_f_one_b.h"

namespace headrace {

bool Recomputes(const ScheduleShape& shape, int micro_batch) {
  switch (shape.recompute) {
    case v1::RECOMPUTE_MODE_NEVER:
      return false;
    case v1::RECOMPUTE_MODE_EXCEPT_LAST:
      return micro_batch != shape.micro_batches - 1;
    default:
      return true;
  }
}

std::vector<Action> AddRecompute(const ScheduleShape& shape, int stage,
                                 const std::vector<Action>& actions) {
  const int extra = stage == shape.stages - 1 ? 0 : shape.extra_working_sets;
  std::vector<bool> forwarded(shape.micro_batches);
  int next = 0;  // micro-batch to recompute
  std::vector<Action> out;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kForward) forwarded[action.micro_batch] = true;
    if (action.kind == ActionKind::kBackward) {
      for (; next < shape.micro_batches && next <= action.micro_batch + extra; ++next) {
        if (!forwarded[next]) break;
        if (Recomputes(shape, next)) out.push_back({action.chunk, ActionKind::kRecompute, next});
      }
    }
    out.push_back(action);
  }
  return out;
}

std::vector<Action> MakeActions(v1::ScheduleKind kind, const ScheduleShape& shape, int stage) {
  return AddRecompute(
      shape, stage,
      kind == v1::SCHEDULE_KIND_1F1B ? OneForwardOneBackward(shape, stage) : Gpipe(shape, stage));
}

Schedule MakeSchedule(v1::ScheduleKind kind, const ScheduleShape& shape) {
  Schedule schedule;
  schedule.reserve(shape.stages);
  for (int k = 0; k < shape.stages; ++k) schedule.push_back(MakeActions(kind, shape, k));
  return schedule;
}

}  // namespace headrace
