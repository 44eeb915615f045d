// One try: a job in K stages on given workers. What PlanJob compares and what advice tries again.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/planner/partition.h"
#include "plan/planner/planner.h"
#include "plan/planner/schedule/schedule.h"
#include "plan/planner/simulate.h"
#include "plan/planner/stage_table.h"
#include "plan/planner/worker_classes.h"

namespace headrace {

struct Trial {
  ScheduleShape shape;
  Schedule schedule;  // empty for generate
  Partition partition;
  std::vector<StageCosts> costs;
  Simulation simulation;     // empty for generate
  std::vector<int> workers;  // index in the list, by stage
};

// What fails to fit least: every way to cut the job lacks at least `missing_bytes` somewhere.
struct Misfit {
  int num_stages = 0;
  int stage = 0;
  Cell cell = {0, 1, 0};
  int worker = 0;  // index in the list
  int64_t limit_bytes = 0;
  StageBytes needed;
  int64_t missing_bytes = 0;
};

class Trials {
 public:
  // `job` must outlive this.
  Trials(const JobShape* job, const std::vector<PlanWorker>& workers);
  Trials(const Trials&) = delete;

  // The fastest plan with so many stages (at most as many as layers and workers). Tries 1F1B with
  // more micro-batches in flight where that could hide the links, and a second working set where a
  // recompute ahead could hide behind a wait, and keeps either if that is faster and fits. Nothing
  // fits: nullopt.
  absl::StatusOr<std::optional<Trial>> Fastest(int num_stages);

  // Seconds of a step with so many stages, without a replay: for the stage where that is most, the
  // way of one micro-batch to it and back, and its own work or its links'. What Fastest would say
  // or a little less. Nothing fits: nullopt.
  std::optional<double> Estimate(int num_stages);

  // Whether any partition fits, without looking for the fastest.
  bool Fits(int num_stages);

  Misfit FindMisfit(int num_stages);

 private:
  // Everything a partition of so many stages needs; pointers within.
  struct Setup {
    Schedule schedule;  // empty for generate
    std::optional<StageTable> table;
    PartitionProblem problem;
  };
  void Prepare(const ScheduleShape& shape, Setup* setup);
  // `known`: the best partition for a shape that takes no more memory, or null. If it fits, it is
  // the best for this one.
  absl::StatusOr<std::optional<Trial>> Try(const ScheduleShape& shape, const Partition* known);
  std::vector<StageCosts> CostsOf(const Setup& setup, const Partition& partition) const;
  // The same with so much ahead if it fits and gains enough, else `best` as it is.
  absl::Status Improve(const ScheduleShape& shape, double worthwhile, std::optional<Trial>* best,
                       ScheduleShape* best_shape);

  const JobShape* job_;
  LayerTable layers_;
  const std::vector<WorkerClass> classes_;
};

// What a step of `trial` would take if tensors were there as soon as they are sent.
absl::StatusOr<double> SecondsWithoutLinks(const JobShape& job, const Trial& trial);

// The worker of each stage: of its class, the first in the list that is free.
std::vector<int> AssignWorkers(const Partition& partition, const std::vector<WorkerClass>& classes);

}  // namespace headrace
