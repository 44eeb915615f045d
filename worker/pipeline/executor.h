// One stage of the pipeline at work: walks its action list, mini-batch after mini-batch.
//
// A mini-batch is cut into M micro-batches (GPipe §2.2). With K = 3 stages and M = 4, fill–drain,
// each row a stage, time to the right; R is forward again, to have what B needs (GPipe §2.3):
//
//   0   F0 F1 F2 F3                   R0 B0 R1 B1 R2 B2 R3 B3
//   1      F0 F1 F2 F3          R0 B0 R1 B1 R2 B2 R3 B3
//   2         F0 F1 F2 F3 R0 B0 R1 B1 R2 B2 R3 B3
//
// A stage sees only its own row, and does for each action:
//
//   F m   take the activation of m from the stage before and keep it; compute; send the result on
//   R m   compute forward again from the kept activation, now keeping all that backward needs
//   B m   take the gradient of m from the stage after; add to the weights' gradients; send the
//         gradient of the kept activation back; forget m
//
// then all stages together decide and update (update.h). The list comes from the planner; what is
// taken and sent follows from it, so no schedule has code here. Gradients add up in ascending order
// of micro-batches and nothing else depends on the order of the list, so every schedule, every K
// and every recompute mode gives the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "headrace/v1/worker.pb.h"
#include "worker/pipeline/evaluation.h"
#include "worker/pipeline/stage_parts.h"
#include "worker/pipeline/tensor_hasher.h"
#include "worker/pipeline/update.h"

namespace headrace {

struct StepOutcome {
  v1::StageStep report;
  Verdict verdict;     // the same on all stages; what it asks for after the step is not done yet
  std::string reason;  // of a step that was not applied: why
};

// Owned by one thread, the stage's, which is the only one that computes.
class Executor {
 public:
  // `job` and all parts must outlive the executor.
  Executor(const StageJob* job, const StageParts& parts);

  // One mini-batch: forward, backward, update if the verdict is so, and an evaluation where one is
  // due. Steps count from 1.
  //   CANCELLED     the stage was told to stop
  //   errors of the exchange, naming step, micro-batch, peer and how long it was waited for
  //   INTERNAL      the device failed: names step, micro-batch, op and what the device said
  absl::StatusOr<StepOutcome> RunStep(int64_t step);

 private:
  struct Times {  // seconds
    double wall = 0, compute = 0, recompute = 0, optimizer = 0;
  };

  absl::StatusOr<StepOutcome> RunWhole(int64_t step);
  absl::Status RunActions();
  absl::Status Run(const Action& action);
  absl::Status Forward(int m);
  absl::Status Recompute(int m);
  absl::Status Backward(int m);
  absl::StatusOr<Decision> FinishMiniBatch();

  // The stage's input of `m`, kept until B: ids on the first stage, else what the stage before
  // sent.
  absl::StatusOr<const void*> TakeBoundary(int m);
  // The same as the layers read it.
  const void* Converted(int m, const void* boundary);
  // `m` as the layers see it.
  MicroBatch Describe(int m) const;
  // The same for backward, which on the last stage needs its targets.
  absl::StatusOr<MicroBatch> DescribeBackward(int m);
  // Mean over all tokens, of the sums of micro-batches added in ascending order.
  // Waits for the device; 0 but on the last stage.
  absl::StatusOr<double> MeanLoss();
  void HashParameters(const char* prefix, Tensor Parameter::*tensor);
  void Report(const Decision& decision, v1::StageStep* report);

  const StageJob& job_;
  const StageParts parts_;
  StageModel& model_;
  Stash& stash_;
  BoundaryCodec& codec_;
  Exchange& exchange_;
  Update update_;
  Evaluation evaluation_;
  TensorHasher hasher_;

  std::vector<bool> recomputes_;  // by micro-batch: has an R, so F keeps the boundary only
  int64_t step_ = 0;
  Times times_;  // of this step
};

}  // namespace headrace
