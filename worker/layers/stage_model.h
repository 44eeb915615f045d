// The layers of one stage with their parameters and gradients, as one cell (GPipe §2.1: F_k, B_k).
// Knows nothing of links, schedules or other stages.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/layer_spec.h"
#include "plan/stage_memory.h"
#include "worker/backend/arena.h"
#include "worker/backend/ops.h"

namespace headrace {

struct Parameter {
  ParameterSpec spec;
  int64_t layer = 0;
  Tensor weight;
  Tensor gradient;
  Tensor rounded;         // the weight in bfloat16, as products read it; null where none is kept
  bool borrowed = false;  // a tied head's copy: no optimizer, no norm, no checkpoint

  // To be called once `weight` was written by anything but the optimizer.
  void Round(Ops* ops) const {
    if (rounded.data != nullptr) ops->NarrowBf16(weight.f32(), rounded.bf16(), weight.elements());
  }
};

// One micro-batch on its way through this stage.
struct MicroBatch {
  MicroBatchShape shape;
  uint64_t seed = 0;  // dropout is a function of (seed, step, micro_batch, layer)
  int64_t step = 0;
  int64_t micro_batch = 0;
  bool training = true;  // false: no dropout
  // Last stage, evaluation and backward; both in the backend's memory.
  const int32_t* targets = nullptr;  // [tokens]
  double* loss = nullptr;            // the summed loss (nats) is added to it
  float loss_scale = 0;              // last stage, backward: 1 / tokens of the whole mini-batch
};

// Called with each tensor of interest while hashing for `verify`; null otherwise.
using TensorObserver = std::function<void(std::string_view name, const Tensor& tensor)>;

// Activations that go in and out (`input` of a stage > 0, `output`, both gradients) are of the ops'
// activation_type. No call waits for the backend.
class StageModel {
 public:
  // Carves weights, gradients and workspace out of `arena`, which must outlive the model, as `ops`.
  // Weights are zero until Initialise or a loader fills them, which calls RoundWeights then.
  //   RESOURCE_EXHAUSTED  as Arena::Carve
  static absl::StatusOr<std::unique_ptr<StageModel>> Create(const StageShape& shape, Arena* arena,
                                                            Ops* ops);
  virtual ~StageModel() = default;

  // Draws every weight from (seed, layer, parameter): the same for every K. A borrowed head weight
  // draws what its owner draws.
  virtual void Initialise(uint64_t seed) = 0;

  virtual void RoundWeights() = 0;  // Parameter::Round of all

  // In layer order; a borrowed head weight last.
  virtual std::vector<Parameter>& parameters() = 0;

  // `input`: token ids [tokens] on stage 0, else [tokens, width]. `output`: [tokens, width];
  // ignored on the last stage. `kept`: null, or WorkingSetBytes(shape) bytes to keep what Backward
  // needs. The last stage adds the loss of an evaluation (mb.training false) to mb.loss; in
  // training Backward does, which forms the logits.
  virtual void Forward(const MicroBatch& mb, const void* input, Act output, void* kept) = 0;
  // Forward again, only to fill `kept`.
  virtual void Recompute(const MicroBatch& mb, const void* input, void* kept) = 0;
  // Adds to parameter gradients. `output_gradient` [tokens, width], null on the last stage;
  // `input_gradient` [tokens, width], null on stage 0. The last stage adds the loss to mb.loss.
  virtual void Backward(const MicroBatch& mb, const void* input, const void* kept,
                        ConstAct output_gradient, Act input_gradient) = 0;

  // Last stage: logits [vocabulary], fp32 in the backend's memory, of token `position` of a
  // forward-only pass; for `generate`.
  virtual void Logits(const MicroBatch& mb, const void* input, int64_t position, float* logits) = 0;

  virtual void ZeroGradients() = 0;
  virtual void Observe(TensorObserver observer) = 0;
};

}  // namespace headrace
