#include "plan/planner/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "plan/planner/even_partition.h"
#include "plan/planner/partition_solver.h"
#include "plan/planner/worker_order.h"

namespace headrace {
namespace {

constexpr double kTolerance = 1e-12;      // of the bisection, relative
constexpr double kOrderTolerance = 1e-4;  // of that over orders, which is no more exact than they
constexpr double kFirstFactor = 1.01;     // how far off a first guess is at best

// The partition of the least bound within which `solver` finds one, which is `best`'s or less;
// tries `guess` first.
Partition Bisect(PartitionSolver* solver, double guess, Partition best) {
  double low = 0;  // nothing is found below
  double at = guess;
  while (best.slowest_s - low > kTolerance * best.slowest_s) {
    if (auto better = solver->Solve({at, 0}); better) {
      best = *std::move(better);
    } else {
      low = solver->next_seconds();
    }
    at = low + (best.slowest_s - low) / 2;
  }
  return best;
}

std::optional<Partition> FindExactly(const PartitionProblem& problem) {
  PartitionSolver solver(problem);
  std::optional<Partition> found = solver.Solve({});
  if (!found) return std::nullopt;
  const Partition best = Bisect(&solver, found->slowest_s / problem.num_stages, *found);
  solver.set_bounds({best.slowest_s, 0});
  return SpreadEvenly(problem, solver, best);
}

// The search over orders, one for each bound.
class OrderedSearch {
 public:
  explicit OrderedSearch(const PartitionProblem& problem) : p_(problem) {}

  std::optional<Partition> Find() {
    if (!Try(std::numeric_limits<double>::infinity())) return std::nullopt;
    double low = Bracket();
    while (best_->slowest_s - low > kOrderTolerance * best_->slowest_s) {
      const double middle = low + (best_->slowest_s - low) / 2;
      if (!Try(middle)) low = middle;
    }
    PartitionSolver solver(p_, order_);
    const Partition best = Bisect(&solver, low, *best_);
    solver.set_bounds({best.slowest_s, 0});
    return SpreadEvenly(p_, solver, best);
  }

 private:
  // Keeps what it finds.
  bool Try(double seconds) {
    std::optional<std::vector<int>> order = OrderWorkers(p_, {seconds, 0});
    if (!order) return false;
    auto found = PartitionSolver(p_, *order).Solve({seconds, 0});
    if (!found) return false;
    best_ = std::move(found);
    order_ = *std::move(order);
    return true;
  }

  // What a stage would take if the fastest workers shared layers like the middle one as finely as
  // they liked.
  double Guess() const {
    std::vector<std::pair<double, int>> layer_s;  // of each class, and its workers
    const int middle = p_.num_layers / 2;
    for (size_t c = 0; c < p_.class_sizes.size(); ++c) {
      layer_s.emplace_back(p_.costs->Seconds(p_.num_stages / 2, static_cast<int>(c), middle,
                                             std::min(middle + 1, p_.num_layers)),
                           p_.class_sizes[c]);
    }
    std::sort(layer_s.begin(), layer_s.end());
    double layers_per_second = 0;
    int missing = p_.num_stages;
    for (const auto& [seconds, size] : layer_s) {
      layers_per_second += std::min(size, missing) / seconds;
      missing -= std::min(size, missing);
    }
    return p_.num_layers / layers_per_second;
  }

  // Looks for a bound near the guess within which nothing is found, and returns it.
  double Bracket() {
    double at = Guess();
    if (!std::isfinite(at) || at <= 0 || at >= best_->slowest_s) return 0;
    double factor = kFirstFactor;
    if (Try(at)) {
      while (best_->slowest_s > 0 && Try(at = best_->slowest_s / factor)) factor *= factor;
      return at;
    }
    double low = at;
    while (at * factor < best_->slowest_s && !Try(at * factor)) {
      low = at * factor;
      factor *= factor;
    }
    return low;
  }

  const PartitionProblem& p_;
  std::optional<Partition> best_;
  std::vector<int> order_;  // of best_
};

}  // namespace

int64_t PartitionSteps(const std::vector<int>& class_sizes, int num_stages) {
  int64_t steps = static_cast<int64_t>(class_sizes.size());
  for (int size : class_sizes) {
    if (__builtin_mul_overflow(steps, int64_t{1} + std::min(size, num_stages), &steps)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return steps;
}

bool IsExact(const PartitionProblem& problem) {
  return problem.class_sizes.size() <= 1 ||
         PartitionSteps(problem.class_sizes, problem.num_stages) <= problem.max_steps;
}

std::optional<Partition> FindPartition(const PartitionProblem& problem) {
  if (problem.num_stages < 1 || problem.num_layers < problem.num_stages) return std::nullopt;
  return IsExact(problem) ? FindExactly(problem) : OrderedSearch(problem).Find();
}

std::optional<Partition> FindAnyPartition(const PartitionProblem& problem, int64_t extra_bytes) {
  if (problem.num_stages < 1 || problem.num_layers < problem.num_stages) return std::nullopt;
  PartitionBounds bounds;
  bounds.extra_bytes = extra_bytes;
  if (IsExact(problem)) return PartitionSolver(problem).Solve(bounds);
  std::optional<std::vector<int>> order = OrderWorkers(problem, bounds);
  if (!order) return std::nullopt;
  return PartitionSolver(problem, *std::move(order)).Solve(bounds);
}

std::optional<Shortage> FindShortage(const PartitionProblem& problem) {
  constexpr int64_t kMost = int64_t{1} << 61;
  int64_t enough = 1;
  std::optional<Partition> partition = FindAnyPartition(problem, 0);
  if (partition) return Shortage{0, *std::move(partition)};
  while (!(partition = FindAnyPartition(problem, enough))) {
    if (enough >= kMost) return std::nullopt;
    enough *= 2;
  }
  int64_t too_little = enough / 2;
  while (enough - too_little > 1) {
    const int64_t middle = too_little + (enough - too_little) / 2;
    if (auto fits = FindAnyPartition(problem, middle); fits) {
      partition = std::move(fits);
      enough = middle;
    } else {
      too_little = middle;
    }
  }
  return Shortage{enough, *std::move(partition)};
}

}  // namespace headrace
