// Shares layers out evenly among stages that the slowest one leaves room: the search for the least
// slowest stage fills the first ones to the brim.
#pragma once

#include "plan/planner/partition.h"
#include "plan/planner/partition_solver.h"

namespace headrace {

// Moves the cuts of `partition`, which keeps `solver`'s bounds, and so does what comes back.
Partition SpreadEvenly(const PartitionProblem& problem, const PartitionSolver& solver,
                       Partition partition);

}  // namespace headrace
