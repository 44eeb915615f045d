// Checks a schedule before anything is allocated or sent: the worker its own list, the planner all.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plan/action.h"

namespace headrace {

// schedule[k] is stage k's list.
using Schedule = std::vector<std::vector<Action>>;

// One stage's list: every micro-batch has one F and one B, at most one R between them, backward in
// ascending order of micro-batches (the order gradients are summed in, for every schedule, is the
// same, so the sums are), chunk equal to `stage`.
//   INVALID_ARGUMENT  names the action and prints the list with it marked
absl::Status CheckActions(const std::vector<Action>& actions, int stage, int micro_batches);

// All stages: each list alone, then replays them together with `credits` tensors in flight per
// edge. An F needs the upstream F's activation, a B the downstream B's gradient, a send a free
// credit.
//   FAILED_PRECONDITION  deadlock; prints the grid, marks the cells that wait and says for what
absl::Status CheckSchedule(const Schedule& schedule, int micro_batches, int credits);

// The schedule as a grid, one row a stage, one column an action.
std::string DrawGrid(const Schedule& schedule);

}  // namespace headrace
