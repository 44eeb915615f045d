// Cuts L layers into K stages, each a contiguous non-empty range on a worker of its own, so that
// the slowest stage is as fast as can be and each fits its worker's memory.
//
// Workers come in classes of equals. The least bound T on a stage's time is found by bisection;
// whether there is a partition within T is asked of a dynamic programme (partition_solver.h):
//
//   exact       over (layers, workers used of each class), where that takes at most `max_steps`
//               steps from state to state: any number of equal workers, 63 and 63 of two kinds,
//               nine of which no two are alike. Near linear in the steps · log L.
//   in order    beyond. A rule (worker_order.h) then chooses who serves which stage for each T,
//               and the cuts are exact for that order. Which of many unlike workers goes where is
//               NP-hard in general; the rule is exact, too, where all layers but the two ends are
//               alike and the ends are no heavier than what any worker may hold. Near linear in
//               (number of classes + K) · log L.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace headrace {

// What stage `stage` costs with layers [first, end) on a worker of class `worker_class`. Both must
// not shrink when the range grows at either end. Stage 0 is only asked for first = 0, the last for
// end = L; worker_order.h asks stages between them for any range.
class CellCosts {
 public:
  virtual ~CellCosts() = default;
  virtual double Seconds(int stage, int worker_class, int first, int end) const = 0;
  virtual int64_t Bytes(int stage, int worker_class, int first, int end) const = 0;
};

struct PartitionProblem {
  int num_layers = 0;
  int num_stages = 0;
  std::vector<int> class_sizes;      // workers in each class; at least num_stages together
  std::vector<int64_t> limit_bytes;  // of each class
  const CellCosts* costs = nullptr;  // must outlive the call
  int64_t max_steps = 8192;          // of the exact search, at each bound
};

// GPipe §2.1's cell: layers [first, end).
struct Cell {
  int first = 0;
  int end = 0;
  int worker_class = 0;

  friend bool operator==(const Cell&, const Cell&) = default;
};

struct Partition {
  std::vector<Cell> cells;  // by stage
  double slowest_s = 0;
};

// Those of the exact search: counts of workers used, times classes the next one may be of.
int64_t PartitionSteps(const std::vector<int>& class_sizes, int num_stages);

// Whether FindPartition and the others are exact for this problem.
bool IsExact(const PartitionProblem& problem);

// Among partitions with the same slowest stage: the others are as even as a greedy pass makes them.
// Nothing fits (in order: nothing was found to): nullopt.
std::optional<Partition> FindPartition(const PartitionProblem& problem);

// Whether anything fits if every limit were `extra_bytes` higher, however slow.
std::optional<Partition> FindAnyPartition(const PartitionProblem& problem, int64_t extra_bytes);

// The least extra memory per worker with which something fits, and what then fits. num_layers ≥
// num_stages, else nullopt.
struct Shortage {
  int64_t bytes = 0;
  Partition partition;
};
std::optional<Shortage> FindShortage(const PartitionProblem& problem);

}  // namespace headrace
