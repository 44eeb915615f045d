// One update of a stage's parameters. What it does to a parameter depends on that parameter, the
// step and one global scale, never on the stage it lies in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"
#include "worker/layers/stage_model.h"

namespace headrace {

// The rate of `step` (from 1): linear warm-up from 0, then constant, linear or cosine down to
// min_learning_rate at the last step, or inverse square root (rate · sqrt(warmup / step)).
double LearningRate(const v1::TrainingSpec& training, int64_t step);

// What the optimizer keeps of one parameter from step to step, besides the weight itself:
//
//   adamw    m, v                 running means of the gradient and of its square
//   sgd      momentum             where it has any
//   rmsprop  square, momentum     the second where it has any
struct OptimizerSlot {
  std::string name;
  Tensor tensor;  // of the parameter's shape, fp32; zeros before the first step
};

class Optimizer {
 public:
  // Carves the moments of owned parameters out of `arena` (kOptimizer). All pointers must outlive
  // it.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(const v1::TrainingSpec& training,
                                                           std::vector<Parameter>* parameters,
                                                           Arena* arena, Ops* ops);
  virtual ~Optimizer() = default;
  // Updates all owned parameters with gradients times `gradient_scale` (clipping, Pascanu et al.
  // 2013).
  virtual void Step(int64_t step, double gradient_scale) = 0;
  // Those of each of the parameters it was made with, in the same order; none of a borrowed one.
  // With the weights and the step they are all that training goes on from.
  virtual const std::vector<std::vector<OptimizerSlot>>& slots() const = 0;
};

}  // namespace headrace
