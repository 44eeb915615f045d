// The end of a mini-batch: from gradients summed over its micro-batches to new weights, as one
// global decision (GPipe §2.2: "the gradients of all M micro-batches are accumulated and applied").
//
//        tie    last stage ──g_head──▶ stage 0                  g = g_embedding + g_head
//       norm    stage 0 ◀─Σ─ stage 1 ◀─Σ─ … ◀─Σ─ last stage     one running sum, last layer first
//   decision    stage 0 ───▶ stage 1 ───▶ … ───▶ last stage     norm², loss, verdict (verdict.h)
//     update    every stage its own parameters, gradients times one scale (clipping)
//        tie    stage 0 ──weight──▶ last stage
//
// Each arrow is one small message a step. The sum's order is that of the parameters, from the last
// one back, so its bits do not depend on where stages begin. It goes the way of the gradients: the
// last stage is done first, stage 0 last, so the sum is there when stage 0 is done; and the
// decision goes ahead of the next step's activations. Neither costs a pipeline of any length any
// time.
//
// Stage 0 alone decides: whether the step is applied (a loss or a norm that is not finite, or a
// loss that is a spike, fares as recovery.on_nan says), and what all stages do after it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/pipeline/spike_watch.h"
#include "worker/pipeline/stage_parts.h"
#include "worker/pipeline/verdict.h"

namespace headrace {

struct Decision {
  double loss = 0;           // mean of the mini-batch, nats per token
  double gradient_norm = 0;  // over all stages, before clipping
  Verdict verdict;
  // Of a step that is not applied, by no stage: why. Names the step and the first bad thing this
  // stage knows.
  std::string reason;
};

// Owned by the compute thread.
class Update {
 public:
  // `job` and all parts must outlive the update.
  Update(const StageJob* job, const StageParts& parts);

  // Gradients are complete once this returns: the tie's two shares are added on stage 0.
  absl::Status JoinTie();
  // `loss` counts on the last stage only. Errors of the exchange, or
  //   INVALID_ARGUMENT  the stage before sent no verdict
  absl::StatusOr<Decision> Decide(int64_t step, double loss);
  // New weights from the decision's gradients; the tied copy follows its owner.
  absl::Status Apply(int64_t step, const Decision& decision);

 private:
  // Sends a tensor out of the memory it lies in, which stays as it is until the receiver has it.
  absl::Status SendInPlace(v1::MessageKind kind, int to_stage, const Tensor& tensor);
  // Σ over this stage's own parameters, the last one first, added to `sum` one by one.
  absl::StatusOr<double> AddSquaredNorms(double sum);
  absl::StatusOr<Decision> AgreeAcrossStages(int64_t step, double sum, double loss);
  Verdict Judge(int64_t step, double loss, double sum) const;
  // Why a step is not applied.
  std::string Reason(int64_t step, double loss, double norm) const;

  const StageJob& job_;
  StageModel* const model_;
  Optimizer* const optimizer_;
  Ops* const ops_;
  Exchange* const exchange_;
  const std::function<Verdict(int64_t step)> wishes_;
  SpikeWatch spikes_;

  std::vector<const Parameter*> normed_;           // own parameters, the last one first
  std::vector<std::span<const float>> gradients_;  // theirs
  DeviceNumbers* const squares_;                   // of a step

  Parameter* tied_ = nullptr;      // stage 0: the embedding's weight, if the model is tied
  Parameter* borrowed_ = nullptr;  // last stage: the head's copy of it
  std::string bad_parameter_;      // first own one whose norm is not finite in this step
};

// torch.nn.utils.clip_grad_norm_: min(1, clip_norm / (norm + 1e-6)); 1 if clip_norm is 0.
double ClipScale(double clip_norm, double norm);

}  // namespace headrace
