// GPipe's fill and drain (Huang et al. 2019, §2.3, figure 2c): all forwards, then all backwards.
// Backwards ascend, as in every schedule here, since gradients are summed in that order.
//
//   K = 3, M = 4, one column a unit of time, F = B = 1:
//   stage 0 | F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3
//   stage 1 |  . F0 F1 F2 F3  .  . B0 B1 B2 B3
//   stage 2 |  .  . F0 F1 F2 F3 B0 B1 B2 B3
#pragma once

#include <vector>

#include "plan/planner/schedule/schedule.h"

namespace headrace {

// F and B only.
std::vector<Action> Gpipe(const ScheduleShape& shape, int stage);

}  // namespace headrace
