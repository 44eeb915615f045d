// Whether there is a partition within given limits: a dynamic programme over what the first stages
// can cover. Exact, over all orders of workers or for one.
//
// A state says which workers the first stages have: how many of each class, or, in a given order,
// merely how many stages there are. Up to three passes; a part of a range that a stage can hold it
// can hold too, which is why the first two, with one number a state, decide nearly always:
//   1  the furthest layer that the stages can cover. If it is the last one, that is a partition.
//   2  the same with empty stages allowed: further is then never worse. If it is not the last one,
//      there is no partition.
//   3  the set of layers they can end at, as intervals (a stage may be able to hold nothing at the
//      furthest one: a heavy layer, a small worker). Exact.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "plan/planner/partition.h"

namespace headrace {

// The limits a stage must keep.
struct PartitionBounds {
  double seconds = std::numeric_limits<double>::infinity();
  int64_t extra_bytes = 0;  // above each class's limit
};

class PartitionSolver {
 public:
  // Any order of workers. `problem` must outlive the solver.
  explicit PartitionSolver(const PartitionProblem& problem);
  // order[k]: the class that serves stage k.
  PartitionSolver(const PartitionProblem& problem, std::vector<int> order);

  // Nothing fits: nullopt.
  std::optional<Partition> Solve(const PartitionBounds& bounds);

  // After Solve found nothing: no bound on seconds below this one changes that, since every range
  // that was refused for its time takes at least as long. Infinite: memory alone stands against it.
  double next_seconds() const { return next_seconds_; }

  // Sets what Fits and Extend answer by, as Solve does.
  void set_bounds(const PartitionBounds& bounds) { bounds_ = bounds; }
  bool Fits(int stage, int worker_class, int first, int end) const;
  // The furthest end of stage `stage` that begins at `first`, leaving a layer for each stage behind
  // it; kUnreachable: it cannot hold even one.
  int Extend(int stage, int worker_class, int first) const;

  static constexpr int kUnreachable = -1;

 private:
  // Of the first stages, with so many workers of each class.
  struct State {
    int reach = kUnreachable;  // layers covered
    int worker_class = -1;     // of the last of these stages
    double total_s = 0;        // breaks ties: faster workers first
  };

  // Ends, both included.
  struct Interval {
    int low = 0, high = 0;
  };

  // Calls visit(index, stage) for each state with 1 to num_stages workers, predecessors first.
  // `stage` is the last of its stages.
  template <typename Visit>
  void ForEachState(Visit visit) const;
  // Calls visit(worker_class, index) for each state with one stage less and the class that then
  // serves the last stage, until it returns true.
  template <typename Visit>
  void ForEachPredecessor(size_t index, Visit visit) const;

  // Fills states_; returns the best one that covers all layers with all stages.
  std::optional<size_t> Furthest(bool may_be_empty);
  void Reach(size_t index, int stage, bool may_be_empty);
  Partition Walk(size_t index) const;

  std::optional<Partition> SolveBySets();
  void AddEnds(int stage, int worker_class, const Interval& starts,
               std::vector<Interval>* ends) const;
  Partition WalkSets(const std::vector<std::vector<Interval>>& ends, size_t index) const;
  struct Step {
    int worker_class = 0, first = 0;
    size_t index = 0;
  };
  Step Predecessor(const std::vector<std::vector<Interval>>& ends, size_t index, int stage,
                   int end) const;

  int LastEnd(int stage) const { return p_.num_layers - (p_.num_stages - 1 - stage); }
  double Slowest(const std::vector<Cell>& cells) const;

  const PartitionProblem& p_;
  const std::vector<int> order_;  // empty: any
  std::vector<int> sizes_;
  std::vector<int64_t> strides_;
  std::vector<State> states_;
  PartitionBounds bounds_;
  mutable double next_seconds_ = 0;  // Fits notes what it refuses
};

}  // namespace headrace
