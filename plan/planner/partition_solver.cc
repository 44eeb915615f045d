#include "plan/planner/partition_solver.h"

#include <algorithm>
#include <numeric>

namespace headrace {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

PartitionSolver::PartitionSolver(const PartitionProblem& problem) : p_(problem) {
  int64_t stride = 1;
  for (int size : p_.class_sizes) {
    sizes_.push_back(std::min(size, p_.num_stages));
    strides_.push_back(stride);
    stride *= sizes_.back() + 1;
  }
  states_.resize(stride);
}

PartitionSolver::PartitionSolver(const PartitionProblem& problem, std::vector<int> order)
    : p_(problem), order_(std::move(order)), states_(order_.size() + 1) {}

std::optional<Partition> PartitionSolver::Solve(const PartitionBounds& bounds) {
  bounds_ = bounds;
  next_seconds_ = kInfinity;
  if (p_.num_stages < 1 || p_.num_layers < p_.num_stages) return std::nullopt;
  if (const auto end = Furthest(/*may_be_empty=*/false); end) return Walk(*end);
  if (!Furthest(/*may_be_empty=*/true)) return std::nullopt;
  return SolveBySets();
}

bool PartitionSolver::Fits(int stage, int c, int first, int end) const {
  if (p_.costs->Bytes(stage, c, first, end) > p_.limit_bytes[c] + bounds_.extra_bytes) return false;
  const double seconds = p_.costs->Seconds(stage, c, first, end);
  if (seconds <= bounds_.seconds) return true;
  next_seconds_ = std::min(next_seconds_, seconds);
  return false;
}

int PartitionSolver::Extend(int stage, int c, int first) const {
  const int last_end = LastEnd(stage);
  if (stage == p_.num_stages - 1) return Fits(stage, c, first, last_end) ? last_end : kUnreachable;
  if (!Fits(stage, c, first, first + 1)) return kUnreachable;
  int fits = first + 1;
  int step = 1;
  while (fits < last_end && Fits(stage, c, first, std::min(fits + step, last_end))) {
    fits = std::min(fits + step, last_end);
    step *= 2;
  }
  int beyond = std::min(fits + step, last_end + 1);
  while (beyond - fits > 1) {
    const int middle = fits + (beyond - fits) / 2;
    (Fits(stage, c, first, middle) ? fits : beyond) = middle;
  }
  return fits;
}

template <typename Visit>
void PartitionSolver::ForEachState(Visit visit) const {
  if (!order_.empty()) {
    for (size_t i = 1; i < states_.size(); ++i) visit(i, static_cast<int>(i) - 1);
    return;
  }
  std::vector<int> counts(sizes_.size());
  for (size_t i = 1; i < states_.size(); ++i) {
    for (size_t c = 0; c < counts.size(); ++c) {
      if (++counts[c] <= sizes_[c]) break;
      counts[c] = 0;
    }
    const int stages = std::accumulate(counts.begin(), counts.end(), 0);
    if (stages <= p_.num_stages) visit(i, stages - 1);
  }
}

template <typename Visit>
void PartitionSolver::ForEachPredecessor(size_t index, Visit visit) const {
  if (!order_.empty()) {
    visit(order_[index - 1], index - 1);
    return;
  }
  for (size_t c = 0; c < sizes_.size(); ++c) {
    const bool used = static_cast<int64_t>(index) / strides_[c] % (sizes_[c] + 1) > 0;
    if (used && visit(static_cast<int>(c), index - strides_[c])) return;
  }
}

std::optional<size_t> PartitionSolver::Furthest(bool may_be_empty) {
  std::fill(states_.begin(), states_.end(), State());
  states_[0].reach = 0;
  std::optional<size_t> best;
  ForEachState([&](size_t i, int stage) {
    Reach(i, stage, may_be_empty);
    if (stage < p_.num_stages - 1 || states_[i].reach != p_.num_layers) return;
    if (!best || states_[i].total_s < states_[*best].total_s) best = i;
  });
  return best;
}

void PartitionSolver::Reach(size_t index, int stage, bool may_be_empty) {
  State& state = states_[index];
  ForEachPredecessor(index, [&](int c, size_t previous) {
    const State& before = states_[previous];
    if (before.reach == kUnreachable) return false;
    int reach = Extend(stage, c, before.reach);
    if (may_be_empty) reach = std::max(reach, before.reach);
    if (reach == kUnreachable) return false;
    const double total_s = before.total_s + p_.costs->Seconds(stage, c, before.reach, reach);
    if (reach > state.reach || (reach == state.reach && total_s < state.total_s)) {
      state = {reach, c, total_s};
    }
    return false;
  });
}

Partition PartitionSolver::Walk(size_t index) const {
  Partition partition;
  partition.cells.resize(p_.num_stages);
  for (int stage = p_.num_stages - 1; stage >= 0; --stage) {
    const State& state = states_[index];
    index -= order_.empty() ? strides_[state.worker_class] : 1;
    partition.cells[stage] = {states_[index].reach, state.reach, state.worker_class};
  }
  partition.slowest_s = Slowest(partition.cells);
  return partition;
}

std::optional<Partition> PartitionSolver::SolveBySets() {
  std::vector<std::vector<Interval>> ends(states_.size());
  ends[0] = {{0, 0}};
  std::optional<size_t> best;
  const auto merge = [](std::vector<Interval>* intervals) {
    std::sort(intervals->begin(), intervals->end(),
              [](const Interval& a, const Interval& b) { return a.low < b.low; });
    std::vector<Interval> merged;
    for (const Interval& interval : *intervals) {
      if (!merged.empty() && interval.low <= merged.back().high + 1) {
        merged.back().high = std::max(merged.back().high, interval.high);
      } else {
        merged.push_back(interval);
      }
    }
    *intervals = std::move(merged);
  };
  ForEachState([&](size_t i, int stage) {
    ForEachPredecessor(i, [&](int c, size_t previous) {
      for (const Interval& starts : ends[previous]) AddEnds(stage, c, starts, &ends[i]);
      return false;
    });
    merge(&ends[i]);
    if (stage == p_.num_stages - 1 && !ends[i].empty()) best = i;
  });
  if (!best) return std::nullopt;
  return WalkSets(ends, *best);
}

// Where the stage can end if it begins anywhere in `starts`. Layers that it cannot hold at all
// cut that into several intervals.
void PartitionSolver::AddEnds(int stage, int c, const Interval& starts,
                              std::vector<Interval>* ends) const {
  if (stage == p_.num_stages - 1) {
    if (Fits(stage, c, starts.high, p_.num_layers)) ends->push_back({p_.num_layers, p_.num_layers});
    return;
  }
  const int high = std::min(starts.high, LastEnd(stage) - 1);
  for (int first = starts.low; first <= high; ++first) {
    int end = Extend(stage, c, first);
    if (end == kUnreachable) continue;
    const int low = first + 1;
    // All of [first, end) fits, so the stage can begin at any of it.
    int next = kUnreachable;
    while (end <= high && (next = Extend(stage, c, end)) != kUnreachable) end = next;
    first = std::min(high, end - 1);
    ends->push_back({low, Extend(stage, c, first)});
  }
}

Partition PartitionSolver::WalkSets(const std::vector<std::vector<Interval>>& ends,
                                    size_t index) const {
  Partition partition;
  partition.cells.resize(p_.num_stages);
  int end = p_.num_layers;
  for (int stage = p_.num_stages - 1; stage >= 0; --stage) {
    const Step step = Predecessor(ends, index, stage, end);
    partition.cells[stage] = {step.first, end, step.worker_class};
    index = step.index;
    end = step.first;
  }
  partition.slowest_s = Slowest(partition.cells);
  return partition;
}

// The class and first layer of a stage that ends at `end`: the latest start is the easiest.
PartitionSolver::Step PartitionSolver::Predecessor(const std::vector<std::vector<Interval>>& ends,
                                                   size_t index, int stage, int end) const {
  Step step;
  ForEachPredecessor(index, [&](int c, size_t previous) {
    const auto& starts = ends[previous];
    for (auto at = starts.rbegin(); at != starts.rend(); ++at) {
      if (at->low >= end) continue;
      const int first = std::min(at->high, end - 1);
      if (!Fits(stage, c, first, end)) return false;
      step = {c, first, previous};
      return true;
    }
    return false;
  });
  return step;
}

double PartitionSolver::Slowest(const std::vector<Cell>& cells) const {
  double slowest_s = 0;
  for (size_t k = 0; k < cells.size(); ++k) {
    const Cell& cell = cells[k];
    slowest_s = std::max(
        slowest_s, p_.costs->Seconds(static_cast<int>(k), cell.worker_class, cell.first, cell.end));
  }
  return slowest_s;
}

}  // namespace headrace
