#include "worker/sim/sim_model.h"

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/status.h"
#include "plan/sim_device.h"
#include "worker/sim/sim_clock.h"

namespace headrace {
namespace {

class SimModel final : public StageModel {
 public:
  SimModel(const v1::SimDevice& device, const StageShape& shape, std::unique_ptr<StageModel> layers)
      : layers_(std::move(layers)), largest_sequences_(shape.largest.sequences) {
    double forward = 0, recompute = 0, backward = 0;
    for (const LayerSpec& layer : shape.layers) {
      forward += ForwardFlops(shape.model, layer, shape.largest);
      recompute += RecomputeFlops(shape.model, layer, shape.largest);
      backward += BackwardFlops(shape.model, layer, shape.largest);
    }
    forward_s_ = SimForwardSeconds(device, forward);
    recompute_s_ = SimRecomputeSeconds(device, recompute);
    backward_s_ = SimBackwardSeconds(device, backward);
  }

  void Initialise(uint64_t) override {}
  void RoundWeights() override {}
  std::vector<Parameter>& parameters() override { return layers_->parameters(); }
  void Forward(const MicroBatch& mb, const void*, Act, void*) override { Work(forward_s_, mb); }
  void Recompute(const MicroBatch& mb, const void*, void*) override { Work(recompute_s_, mb); }
  void Backward(const MicroBatch& mb, const void*, const void*, ConstAct, Act) override {
    Work(backward_s_, mb);
  }
  void Logits(const MicroBatch&, const void*, int64_t, float*) override {}
  void ZeroGradients() override {}
  void Observe(TensorObserver) override {}

 private:
  // The planner scales by sequences too.
  void Work(double seconds, const MicroBatch& mb) {
    clock_.Work(absl::Seconds(seconds * static_cast<double>(mb.shape.sequences) /
                              static_cast<double>(largest_sequences_)));
  }

  const std::unique_ptr<StageModel> layers_;
  const int64_t largest_sequences_;
  double forward_s_ = 0, recompute_s_ = 0, backward_s_ = 0;
  SimClock clock_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StageModel>> CreateSimModel(const v1::SimDevice& device,
                                                           const StageShape& shape, Arena* arena,
                                                           Ops* ops) {
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<StageModel> layers,
                            StageModel::Create(shape, arena, ops));
  return std::make_unique<SimModel>(device, shape, std::move(layers));
}

}  // namespace headrace
