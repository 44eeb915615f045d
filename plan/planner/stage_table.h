// What any range of a job's layers costs as any stage, in constant time: sums and maxima over
// ranges are prepared once, where plan/stage_memory.h and plan/layer_spec.h would walk the layers.
// A test holds both equal.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"
#include "plan/layer_spec.h"
#include "plan/planner/partition.h"
#include "plan/planner/worker_classes.h"
#include "plan/replay.h"
#include "plan/stage_memory.h"

namespace headrace {

// A job with its defaults filled in.
struct JobShape {
  Model model;
  std::vector<LayerSpec> layers;
  std::vector<int64_t> micro_batch_sequences;
  MicroBatchShape largest;  // micro-batch
  v1::ScheduleKind schedule = v1::SCHEDULE_KIND_GPIPE;
  v1::RecomputeMode recompute = v1::RECOMPUTE_MODE_ALWAYS;
  int64_t credits = 2;
  int64_t optimizer_moments = 2;
  bool training = true;
  bool bf16_boundaries = false;
  Precision precision = Precision::kFp32;
  bool tf32 = false;

  // As StageShape::recomputes.
  bool recomputes() const;
  int micro_batches() const { return static_cast<int>(micro_batch_sequences.size()); }
  StageShape Stage(int stage, int num_stages, const Cell& cell, const Compute& on) const;
};

// For training, and for `generate`: one sequence of the model's context, forward only. `spec` has
// passed ValidateJob, or the model's and the batch's errors come back.
absl::StatusOr<JobShape> ResolveTraining(const v1::JobSpec& spec);
absl::StatusOr<JobShape> ResolveGenerate(const v1::JobSpec& spec);

// Sums and maxima over the layers; the same for every number of stages.
class LayerTable {
 public:
  // `job` must outlive the table.
  explicit LayerTable(const JobShape* job);

  const JobShape& job() const { return *job_; }
  double ForwardFlops(int first, int end) const { return forward_[end] - forward_[first]; }
  double RecomputeFlops(int first, int end) const { return recompute_[end] - recompute_[first]; }
  double BackwardFlops(int first, int end) const { return backward_[end] - backward_[first]; }
  int64_t OwnParameters(int first, int end) const;
  // What layers take where they are computed on one device; of each kind, as kinds().
  struct Sizes {
    std::vector<int64_t> state, saved, output;
    std::vector<int64_t> forward, backward;  // workspace
    std::vector<int64_t> scratch;            // of a CUDA device's ops, else 0
    int64_t whole_state = 0;                 // of a stage that is the whole model
    int64_t two_outputs = 0;                 // of activations between layers
  };
  Sizes SizesOn(const Compute& on) const;
  // Of the layers [first, end).
  int64_t StateBytes(const Sizes& sizes, int first,
                     int end) const;  // weights, gradients, optimizer
  int64_t WorkingSetBytes(const Sizes& sizes, int first, int end) const;
  int64_t WorkspaceBytes(const Sizes& sizes, int first, int end) const;
  // Layers of a kind are alike: what one of them takes, and how many a range has.
  struct Kind {
    LayerKind kind;
    double forward_flops = 0, recompute_flops = 0, backward_flops = 0;
    LayerSpec example;
    std::vector<int> before;  // among the first i layers
    int count(int first, int end) const { return before[end] - before[first]; }
  };
  const std::vector<Kind>& kinds() const { return kinds_; }

 private:
  void CountKinds();

  const JobShape* job_;
  std::vector<double> forward_ = {0}, recompute_ = {0}, backward_ = {0};  // sums of the first i
  std::vector<Kind> kinds_;
  int64_t shared_weight_bytes_ = 0;  // of a stage with Llama blocks
  bool recomputes_ = false;          // as JobShape
};

// The costs of `num_stages` stages on these workers; stage k's list holds levels[k] at its peaks.
class StageTable : public CellCosts {
 public:
  // Pointers must outlive the table.
  StageTable(LayerTable* layers, const std::vector<WorkerClass>* classes, int num_stages,
             std::vector<std::vector<StashLevel>> levels);

  // One micro-batch's forward, recompute (by the share of micro-batches that have one), backward,
  // and the way of what the stage sends.
  double Seconds(int stage, int worker_class, int first, int end) const override;
  int64_t Bytes(int stage, int worker_class, int first, int end) const override;

  // For the simulator.
  StageCosts Costs(int stage, const Cell& cell) const;

 private:
  // What does not depend on the range: of a stage, and of a class. The partition asks for costs
  // hundreds of thousands of times.
  struct OfStage {
    int64_t boundary_bytes = 0;  // as BoundaryBytes (plan/stage_memory.h)
    int64_t fixed_bytes = 0;     // link
    int64_t buffers = 0;         // between boundaries and layers of another type
    std::vector<StashLevel> levels;
  };
  struct OfClass {
    LayerTable::Sizes sizes;
    int64_t buffer_bytes = 0;  // of one of OfStage::buffers
    int64_t fixed_bytes = 0;   // what ops take among themselves, whatever the layers
    int64_t last_bytes = 0;    // as the last stage: what the host hands in or reads
    bool cuda = false;
    double link_s = 0;  // of one tensor it sends
    // [kind of layers_->kinds()]: seconds of one layer, where any was measured; else empty.
    std::vector<MeasuredCost> measured;
  };

  void AddComputeSeconds(const Cell& cell, StageCosts* costs) const;
  int64_t StashBytes(const OfStage& stage, const OfClass& on, int first, int end) const;
  // `stage` without its layers, which no boundary depends on.
  StageShape Bare(int stage) const;

  LayerTable* layers_;
  const std::vector<WorkerClass>* classes_;
  int num_stages_;
  double recomputed_share_ = 0;
  std::vector<OfStage> of_stage_;
  std::vector<OfClass> of_class_;
};

}  // namespace headrace
