// Which workers serve, and in which order, where there are too many unlike ones to try them all: a
// rule, for one bound on a stage's time and memory.
//
// A worker holds h layers out of the middle of the model: as many as its time allows, a, or fewer
// where its memory does not allow those. Those with the largest h serve. The earlier a stage, the
// more it stashes (1F1B), so workers with much memory to spare beside their a layers come first.
// Why that is best where layers are alike: at stage k a worker holds a − max(0, x − k · d) / m
// layers, x what its memory lacks for a layers at stage 0, d what a stage later saves, m a layer's
// size. What all lose together is a sum of a convex function of x − k · d, which is least with both
// sequences in the same order.
//
// The ends are not alike (an embedding, a head): they go to the workers that then hold most there,
// less what they are missed for in the middle.
#pragma once

#include <optional>
#include <vector>

#include "plan/planner/partition.h"
#include "plan/planner/partition_solver.h"

namespace headrace {

// The class of each stage. Nullopt: nobody can hold the first layer, or the last one.
// O(C · log(C · L)) for C classes.
std::optional<std::vector<int>> OrderWorkers(const PartitionProblem& problem,
                                             const PartitionBounds& bounds);

}  // namespace headrace
