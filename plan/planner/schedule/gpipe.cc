#include "plan/planner/schedule/gpipe.h"

namespace headrace {

std::vector<Action> Gpipe(const ScheduleShape& shape, int stage) {
  std::vector<Action> actions;
  for (int m = 0; m < shape.micro_batches; ++m) {
    actions.push_back({stage, ActionKind::kForward, m});
  }
  for (int m = 0; m < shape.micro_batches; ++m) {
    actions.push_back({stage, ActionKind::kBackward, m});
  }
  return actions;
}

}  // namespace headrace
