#include "plan/planner/partition.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace headrace {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kUnreachable = -1;
constexpr double kTolerance = 1e-12;  // of the bisection, relative
constexpr int kEvenPasses = 8;

// The limits a stage must keep.
struct Bounds {
  double seconds = kInfinity;
  int64_t extra_bytes = 0;
};

class Solver {
 public:
  explicit Solver(const PartitionProblem& problem) : p_(problem) {
    int64_t stride = 1;
    for (int size : p_.class_sizes) {
      sizes_.push_back(std::min(size, p_.num_stages));
      strides_.push_back(stride);
      stride *= sizes_.back() + 1;
    }
    states_.resize(stride);
  }

  std::optional<Partition> Solve(const Bounds& bounds) {
    bounds_ = bounds;
    if (p_.num_stages < 1 || p_.num_layers < p_.num_stages) return std::nullopt;
    if (const auto end = Furthest(/*may_be_empty=*/false); end) return Walk(*end);
    if (!Furthest(/*may_be_empty=*/true)) return std::nullopt;
    return SolveBySets();
  }

  // Spreads layers evenly without passing the bounds of the last Solve.
  Partition Even(Partition partition) {
    if (auto spread = Spread(partition.cells); spread) partition.cells = *std::move(spread);
    for (int pass = 0; pass < kEvenPasses && Shift(&partition.cells); ++pass) continue;
    partition.slowest_s = Slowest(partition.cells);
    return partition;
  }

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

  // Calls visit(state, stage, counts) for each state with 1 to num_stages workers, predecessors
  // first. `stage` is the last of its stages.
  template <typename Visit>
  void ForEachState(Visit visit) {
    std::vector<int> counts(sizes_.size());
    for (size_t i = 1; i < states_.size(); ++i) {
      for (size_t c = 0; c < counts.size(); ++c) {
        if (++counts[c] <= sizes_[c]) break;
        counts[c] = 0;
      }
      const int stages = std::accumulate(counts.begin(), counts.end(), 0);
      if (stages <= p_.num_stages) visit(i, stages - 1, counts);
    }
  }

  // Fills states_; returns the best one that covers all layers with all stages.
  std::optional<size_t> Furthest(bool may_be_empty) {
    std::fill(states_.begin(), states_.end(), State());
    states_[0].reach = 0;
    std::optional<size_t> best;
    ForEachState([&](size_t i, int stage, const std::vector<int>& counts) {
      Reach(i, stage, counts, may_be_empty);
      if (stage < p_.num_stages - 1 || states_[i].reach != p_.num_layers) return;
      if (!best || states_[i].total_s < states_[*best].total_s) best = i;
    });
    return best;
  }

  bool Fits(int stage, int c, int first, int end) const {
    return p_.costs->Bytes(stage, c, first, end) <= p_.limit_bytes[c] + bounds_.extra_bytes &&
           p_.costs->Seconds(stage, c, first, end) <= bounds_.seconds;
  }

  // The last layer stage `stage` may end at, leaving one for each stage behind it.
  int LastEnd(int stage) const { return p_.num_layers - (p_.num_stages - 1 - stage); }

  int Extend(int stage, int c, int first) const {
    const int last_end = LastEnd(stage);
    if (stage == p_.num_stages - 1)
      return Fits(stage, c, first, last_end) ? last_end : kUnreachable;
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

  void Reach(size_t index, int stage, const std::vector<int>& counts, bool may_be_empty) {
    State& state = states_[index];
    for (size_t i = 0; i < counts.size(); ++i) {
      const int c = static_cast<int>(i);
      if (counts[c] == 0) continue;
      const State& before = states_[index - strides_[c]];
      if (before.reach == kUnreachable) continue;
      int reach = Extend(stage, c, before.reach);
      if (may_be_empty) reach = std::max(reach, before.reach);
      if (reach == kUnreachable) continue;
      const double total_s =
          before.total_s + p_.costs->Seconds(stage, c, before.reach, std::max(reach, 0));
      if (reach > state.reach || (reach == state.reach && total_s < state.total_s)) {
        state = {reach, c, total_s};
      }
    }
  }

  Partition Walk(size_t index) const {
    Partition partition;
    partition.cells.resize(p_.num_stages);
    for (int stage = p_.num_stages - 1; stage >= 0; --stage) {
      const State& state = states_[index];
      index -= strides_[state.worker_class];
      partition.cells[stage] = {states_[index].reach, state.reach, state.worker_class};
    }
    partition.slowest_s = Slowest(partition.cells);
    return partition;
  }

  std::optional<Partition> SolveBySets() {
    std::vector<std::vector<Interval>> ends(states_.size());
    ends[0] = {{0, 0}};
    std::optional<size_t> best;
    ForEachState([&](size_t i, int stage, const std::vector<int>& counts) {
      for (size_t c = 0; c < counts.size(); ++c) {
        if (counts[c] == 0) continue;
        for (const Interval& starts : ends[i - strides_[c]]) {
          AddEnds(stage, static_cast<int>(c), starts, &ends[i]);
        }
      }
      Merge(&ends[i]);
      if (stage == p_.num_stages - 1 && !ends[i].empty()) best = i;
    });
    if (!best) return std::nullopt;
    return WalkSets(ends, *best);
  }

  // Where the stage can end if it begins anywhere in `starts`. Layers that it cannot hold at all
  // cut that into several intervals.
  void AddEnds(int stage, int c, const Interval& starts, std::vector<Interval>* ends) const {
    if (stage == p_.num_stages - 1) {
      if (Fits(stage, c, starts.high, p_.num_layers)) {
        ends->push_back({p_.num_layers, p_.num_layers});
      }
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

  static void Merge(std::vector<Interval>* intervals) {
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
  }

  Partition WalkSets(const std::vector<std::vector<Interval>>& ends, size_t index) const {
    Partition partition;
    partition.cells.resize(p_.num_stages);
    int end = p_.num_layers;
    for (int stage = p_.num_stages - 1; stage >= 0; --stage) {
      const auto [c, first] = Predecessor(ends, index, stage, end);
      partition.cells[stage] = {first, end, c};
      index -= strides_[c];
      end = first;
    }
    partition.slowest_s = Slowest(partition.cells);
    return partition;
  }

  // The class and first layer of a stage that ends at `end`: the latest start is the easiest.
  std::pair<int, int> Predecessor(const std::vector<std::vector<Interval>>& ends, size_t index,
                                  int stage, int end) const {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const int c = static_cast<int>(i);
      const bool used = static_cast<int64_t>(index) / strides_[c] % (sizes_[c] + 1) > 0;
      if (!used) continue;
      const auto& starts = ends[index - strides_[c]];
      for (auto at = starts.rbegin(); at != starts.rend(); ++at) {
        if (at->low >= end) continue;
        const int first = std::min(at->high, end - 1);
        if (Fits(stage, c, first, end)) return {c, first};
        break;
      }
    }
    return {0, 0};  // not reached: `end` is in this state's set
  }

  double Seconds(int stage, const Cell& cell) const {
    return p_.costs->Seconds(stage, cell.worker_class, cell.first, cell.end);
  }

  double Slowest(const std::vector<Cell>& cells) const {
    double slowest_s = 0;
    for (size_t k = 0; k < cells.size(); ++k) {
      slowest_s = std::max(slowest_s, Seconds(static_cast<int>(k), cells[k]));
    }
    return slowest_s;
  }

  // earliest[k]: the first layer stage k may begin with, for the stages from it on to cover the
  // rest.
  std::vector<int> EarliestStarts(const std::vector<Cell>& cells) const {
    std::vector<int> earliest(cells.size() + 1, p_.num_layers);
    for (int k = p_.num_stages - 1; k > 0; --k) {
      int no = k - 1, yes = cells[k].first;  // where the cells stand is known to fit
      const int end = earliest[k + 1];
      yes = std::min(yes, end - 1);
      while (yes - no > 1) {
        const int middle = no + (yes - no) / 2;
        (Fits(k, cells[k].worker_class, middle, end) ? yes : no) = middle;
      }
      earliest[k] = yes;
    }
    return earliest;
  }

  // The greedy reach fills the first stages to the brim. Moves each cut to where the stage takes
  // its share of what is left. Nullopt: a stage would begin where its worker has no room.
  std::optional<std::vector<Cell>> Spread(std::vector<Cell> cells) const {
    const std::vector<int> earliest = EarliestStarts(cells);
    double left_s = 0;
    for (int k = 0; k < p_.num_stages; ++k) left_s += Seconds(k, cells[k]);
    int first = 0;
    for (int k = 0; k < p_.num_stages; ++k) {
      Cell& cell = cells[k];
      const double share_s = left_s / (p_.num_stages - k);
      cell.first = first;
      int low = std::max(first + 1, earliest[k + 1]);
      int high = Extend(k, cell.worker_class, first);
      if (high < low) return std::nullopt;
      while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        cell.end = middle;
        if (Seconds(k, cell) <= share_s) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      cell.end = first = low;
      left_s = std::max(0.0, left_s - Seconds(k, cell));
    }
    for (int k = 0; k < p_.num_stages; ++k) {
      if (!Fits(k, cells[k].worker_class, cells[k].first, cells[k].end)) return std::nullopt;
    }
    return cells;
  }

  // Moves single layers between neighbours where that makes the slower of the two faster.
  bool Shift(std::vector<Cell>* cells) const {
    bool moved = false;
    for (int k = 0; k + 1 < p_.num_stages; ++k) {
      for (const int by : {-1, 1}) {
        Cell left = (*cells)[k], right = (*cells)[k + 1];
        left.end = right.first = left.end + by;
        if (left.end <= left.first || right.end <= right.first) continue;
        if (std::max(Seconds(k, left), Seconds(k + 1, right)) >=
            std::max(Seconds(k, (*cells)[k]), Seconds(k + 1, (*cells)[k + 1])) * (1 - kTolerance)) {
          continue;
        }
        if (!Fits(k, left.worker_class, left.first, left.end) ||
            !Fits(k + 1, right.worker_class, right.first, right.end)) {
          continue;
        }
        (*cells)[k] = left;
        (*cells)[k + 1] = right;
        moved = true;
      }
    }
    return moved;
  }

  const PartitionProblem& p_;
  std::vector<int> sizes_;
  std::vector<int64_t> strides_;
  std::vector<State> states_;
  Bounds bounds_;
};

}  // namespace

int64_t PartitionStates(const std::vector<int>& class_sizes, int num_stages) {
  int64_t states = 1;
  for (int size : class_sizes) {
    if (__builtin_mul_overflow(states, int64_t{1} + std::min(size, num_stages), &states)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return states;
}

std::optional<Partition> FindPartition(const PartitionProblem& problem) {
  Solver solver(problem);
  std::optional<Partition> best = solver.Solve({});
  if (!best) return std::nullopt;
  double low = 0;
  while (best->slowest_s - low > kTolerance * best->slowest_s) {
    const double middle = low + (best->slowest_s - low) / 2;
    if (auto better = solver.Solve({middle, 0}); better) {
      best = std::move(better);
    } else {
      low = middle;
    }
  }
  solver.Solve({best->slowest_s, 0});
  return solver.Even(*std::move(best));
}

std::optional<Partition> FindAnyPartition(const PartitionProblem& problem, int64_t extra_bytes) {
  return Solver(problem).Solve({kInfinity, extra_bytes});
}

std::optional<Shortage> FindShortage(const PartitionProblem& problem) {
  Solver solver(problem);
  constexpr int64_t kMost = int64_t{1} << 61;
  int64_t enough = 1;
  std::optional<Partition> partition = solver.Solve({kInfinity, 0});
  if (partition) return Shortage{0, *std::move(partition)};
  while (!(partition = solver.Solve({kInfinity, enough}))) {
    if (enough >= kMost) return std::nullopt;
    enough *= 2;
  }
  int64_t too_little = enough / 2;
  while (enough - too_little > 1) {
    const int64_t middle = too_little + (enough - too_little) / 2;
    if (auto fits = solver.Solve({kInfinity, middle}); fits) {
      partition = std::move(fits);
      enough = middle;
    } else {
      too_little = middle;
    }
  }
  return Shortage{enough, *std::move(partition)};
}

}  // namespace headrace
