#include "worker/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "plan/stage_memory.h"
#include "worker/optimizer/group.h"

namespace headrace {
namespace {

// PyTorch's defaults.
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kEpsilon = 1e-8;
constexpr double kAlpha = 0.99;

// Parameters that are updated with the same constants, and so in one call.
struct Group {
  GroupConstants constants;
  std::vector<UpdatedTensor> tensors;
};

// As many as OptimizerMoments.
std::vector<std::string> SlotNames(const v1::OptimizerSpec& spec) {
  std::vector<std::string> names;
  switch (spec.kind()) {
    case v1::OPTIMIZER_KIND_SGD:
      names = {"momentum"};
      break;
    case v1::OPTIMIZER_KIND_RMSPROP:
      names = {"square", "momentum"};
      break;
    default:
      names = {"m", "v"};
  }
  names.resize(static_cast<size_t>(OptimizerMoments(spec)));
  return names;
}

std::vector<UpdatedTensor>& TensorsOf(const GroupConstants& constants, std::vector<Group>* groups) {
  for (Group& group : *groups) {
    if (group.constants == constants) return group.tensors;
  }
  groups->push_back({constants, {}});
  return groups->back().tensors;
}

class OptimizerImpl : public Optimizer {
 public:
  OptimizerImpl(const v1::TrainingSpec& training, std::vector<Group> groups,
                std::vector<std::vector<OptimizerSlot>> slots, Ops* ops)
      : training_(training), groups_(std::move(groups)), slots_(std::move(slots)), ops_(ops) {}

  void Step(int64_t step, double gradient_scale) override {
    const double rate = LearningRate(training_, step);
    for (const Group& g : groups_) Update(g, step, rate, static_cast<float>(gradient_scale));
  }
  const std::vector<std::vector<OptimizerSlot>>& slots() const override { return slots_; }

 private:
  void Update(const Group& g, int64_t step, double rate, float gradient_scale) {
    const v1::OptimizerSpec& spec = training_.optimizer();
    const float learning_rate = static_cast<float>(rate * g.constants.learning_rate_scale);
    const float weight_decay = static_cast<float>(g.constants.weight_decay);
    const float epsilon = static_cast<float>(spec.has_epsilon() ? spec.epsilon() : kEpsilon);
    const float momentum = static_cast<float>(spec.momentum());
    switch (spec.kind()) {
      case v1::OPTIMIZER_KIND_SGD:
        return ops_->Sgd(g.tensors, {.learning_rate = learning_rate,
                                     .weight_decay = weight_decay,
                                     .momentum = momentum,
                                     .gradient_scale = gradient_scale,
                                     .nesterov = spec.nesterov(),
                                     .first = step == 1});
      case v1::OPTIMIZER_KIND_RMSPROP:
        return ops_->RmsProp(g.tensors, {.learning_rate = learning_rate,
                                         .weight_decay = weight_decay,
                                         .alpha = spec.has_alpha() ? spec.alpha() : kAlpha,
                                         .epsilon = epsilon,
                                         .momentum = momentum,
                                         .gradient_scale = gradient_scale});
      default:
        return AdamW(g, step,
                     {.learning_rate = learning_rate,
                      .epsilon = epsilon,
                      .weight_decay = weight_decay,
                      .gradient_scale = gradient_scale});
    }
  }

  void AdamW(const Group& g, int64_t step, AdamWStep constants) {
    const v1::OptimizerSpec& spec = training_.optimizer();
    const double beta1 = spec.has_beta1() ? spec.beta1() : kBeta1;
    const double beta2 = spec.has_beta2() ? spec.beta2() : kBeta2;
    constants.beta1 = beta1;
    constants.beta2 = beta2;
    constants.bias_correction1 = static_cast<float>(1 - std::pow(beta1, static_cast<double>(step)));
    constants.bias_correction2 = static_cast<float>(1 - std::pow(beta2, static_cast<double>(step)));
    ops_->AdamW(g.tensors, constants);
  }

  const v1::TrainingSpec training_;
  const std::vector<Group> groups_;
  const std::vector<std::vector<OptimizerSlot>> slots_;
  Ops* const ops_;
};

}  // namespace

double LearningRate(const v1::TrainingSpec& training, int64_t step) {
  const v1::LearningRateSpec& spec = training.learning_rate();
  const double rate = training.optimizer().learning_rate();
  if (step < spec.warmup_steps()) {
    return rate * static_cast<double>(step) / static_cast<double>(spec.warmup_steps());
  }
  // The one step at the full rate; the decline is over the steps after it.
  const int64_t peak = std::max<int64_t>(spec.warmup_steps(), 1);
  if (step <= peak) return rate;
  const double minimum = spec.min_learning_rate();
  const double progress =
      static_cast<double>(step - peak) / static_cast<double>(training.steps() - peak);
  switch (spec.kind()) {
    case v1::LEARNING_RATE_KIND_LINEAR:
      return rate + (minimum - rate) * progress;
    case v1::LEARNING_RATE_KIND_COSINE:
      return minimum + (rate - minimum) * (1 + std::cos(std::numbers::pi * progress)) / 2;
    case v1::LEARNING_RATE_KIND_INVERSE_SQRT:
      return rate * std::sqrt(static_cast<double>(peak) / static_cast<double>(step));
    default:
      return rate;
  }
}

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(const v1::TrainingSpec& training,
                                                             std::vector<Parameter>* parameters,
                                                             Arena* arena, Ops* ops) {
  const std::vector<std::string> names = SlotNames(training.optimizer());
  std::vector<Group> groups;
  std::vector<std::vector<OptimizerSlot>> slots;
  for (Parameter& parameter : *parameters) {
    slots.emplace_back();
    if (parameter.borrowed) continue;
    UpdatedTensor tensor{.w = parameter.weight.f32(),
                         .g = parameter.gradient.f32(),
                         .half = parameter.rounded.bf16(),
                         .count = parameter.weight.elements()};
    for (size_t i = 0; i < names.size(); ++i) {
      HEADRACE_ASSIGN_OR_RETURN(
          const Tensor moment,
          arena->Carve(MemoryKind::kOptimizer,
                       absl::StrCat("moment ", i + 1, " of ", parameter.spec.name),
                       ElementType::kFloat32, parameter.spec.shape));
      (i == 0 ? tensor.state : tensor.state2) = moment.f32();
      slots.back().push_back({names[i], moment});
    }
    TensorsOf(ConstantsFor(training.optimizer(), parameter.spec), &groups).push_back(tensor);
  }
  return std::make_unique<OptimizerImpl>(training, std::move(groups), std::move(slots), ops);
}

}  // namespace headrace
