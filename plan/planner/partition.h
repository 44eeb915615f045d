// Cuts L layers into K stages, each a contiguous non-empty range on a worker of its own, so that
// the slowest stage is as fast as can be and each fits its worker's memory. Exact.
//
// Workers come in classes of equals. The least bound T on a stage's time is found by bisection.
// Whether there is a partition within T is a dynamic programme over (layers, workers used of each
// class), in up to three passes; a part of a range that a stage can hold it can hold too, which is
// why the first two, with one number a state, decide nearly always:
//   1  the furthest layer that the first n_1 + … + n_c stages can cover with n_i workers of class
//   i. If
//      it is the last one, that is a partition.
//   2  the same with empty stages allowed: further is then never worse. If it is not the last one,
//      there is no partition.
//   3  the set of layers they can end at, as intervals (a stage may be able to hold nothing at the
//      furthest one: a heavy layer, a small worker). Exact.
// Equal workers make K states: near linear in K · log L.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace headrace {

// What stage `stage` costs with layers [first, end) on a worker of class `worker_class`. Both must
// not shrink when the range grows at either end. Stage 0 is only asked for first = 0, the last for
// end = L.
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

// The number of counts the dynamic programme visits; callers keep it small by making fewer classes.
int64_t PartitionStates(const std::vector<int>& class_sizes, int num_stages);

// Among partitions with the same slowest stage: the others are as even as a greedy pass makes them.
// Nothing fits: nullopt.
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
