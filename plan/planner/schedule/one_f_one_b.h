// One forward, one backward (PipeDream-Flush, Narayanan et al. 2021): as much bubble as GPipe, but
// stage k holds at most K − k micro-batches instead of M.
//
// Where tensors take time a on their way down and g on their way up, a micro-batch is with stage
// k + 1 and on its way for n(k+1) · C + a + g, C = F + R + B, in which stage k must find other ones
// to work on: n(k) ≥ n(k+1) + 1 + (a + g) / C, or each C lasts a + g longer. `lead` is that
// n(k) − n(k+1); stage k holds (K − 1 − k) · lead + 1.
//
//   K = 3, M = 4, one column a unit of time, F = B = 1:
//   stage 0 | F0 F1 F2  .  . B0 F3 B1  . B2  . B3
//   stage 1 |  . F0 F1  . B0 F2 B1 F3 B2  . B3
//   stage 2 |  .  . F0 B0 F1 B1 F2 B2 F3 B3
//             warm-up: K − k forwards; steady: one backward, one forward; drain: what is left
#pragma once

#include <vector>

#include "plan/planner/schedule/schedule.h"

namespace headrace {

// F and B only.
std::vector<Action> OneForwardOneBackward(const ScheduleShape& shape, int stage);

}  // namespace headrace
