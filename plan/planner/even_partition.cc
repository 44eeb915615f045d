#include "plan/planner/even_partition.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace headrace {
namespace {

constexpr int kPasses = 8;
constexpr double kFasterBy = 1e-12;  // relative: what counts as faster

class Spreader {
 public:
  Spreader(const PartitionProblem& problem, const PartitionSolver& solver)
      : p_(problem), solver_(solver) {}

  // Moves each cut to where the stage takes its share of what is left. Nullopt: a stage would begin
  // where its worker has no room.
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
      int high = solver_.Extend(k, cell.worker_class, first);
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
      if (!Fits(k, cells[k])) return std::nullopt;
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
            std::max(Seconds(k, (*cells)[k]), Seconds(k + 1, (*cells)[k + 1])) * (1 - kFasterBy)) {
          continue;
        }
        if (!Fits(k, left) || !Fits(k + 1, right)) continue;
        (*cells)[k] = left;
        (*cells)[k + 1] = right;
        moved = true;
      }
    }
    return moved;
  }

  double Slowest(const std::vector<Cell>& cells) const {
    double slowest_s = 0;
    for (size_t k = 0; k < cells.size(); ++k) {
      slowest_s = std::max(slowest_s, Seconds(static_cast<int>(k), cells[k]));
    }
    return slowest_s;
  }

 private:
  bool Fits(int stage, const Cell& cell) const {
    return solver_.Fits(stage, cell.worker_class, cell.first, cell.end);
  }

  double Seconds(int stage, const Cell& cell) const {
    return p_.costs->Seconds(stage, cell.worker_class, cell.first, cell.end);
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
        (solver_.Fits(k, cells[k].worker_class, middle, end) ? yes : no) = middle;
      }
      earliest[k] = yes;
    }
    return earliest;
  }

  const PartitionProblem& p_;
  const PartitionSolver& solver_;
};

}  // namespace

Partition SpreadEvenly(const PartitionProblem& problem, const PartitionSolver& solver,
                       Partition partition) {
  const Spreader spreader(problem, solver);
  if (auto spread = spreader.Spread(partition.cells); spread) partition.cells = *std::move(spread);
  for (int pass = 0; pass < kPasses && spreader.Shift(&partition.cells); ++pass) continue;
  partition.slowest_s = spreader.Slowest(partition.cells);
  return partition;
}

}  // namespace headrace
