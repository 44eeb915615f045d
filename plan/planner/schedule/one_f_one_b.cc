#include "plan/planner/schedule/one_f_one_b.h"

#include <algorithm>

namespace headrace {

std::vector<Action> OneForwardOneBackward(const ScheduleShape& shape, int stage) {
  std::vector<Action> actions;
  int forward = 0;
  const auto add_forward = [&] { actions.push_back({stage, ActionKind::kForward, forward++}); };
  const int in_flight = (shape.stages - 1 - stage) * shape.lead + 1;
  while (forward < std::min(in_flight, shape.micro_batches)) add_forward();
  for (int m = 0; m < shape.micro_batches; ++m) {
    actions.push_back({stage, ActionKind::kBackward, m});
    if (forward < shape.micro_batches) add_forward();
  }
  return actions;
}

}  // namespace headrace
