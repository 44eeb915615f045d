// One update of a stage's parameters. What it does to a parameter depends on that parameter, the step
// and one global scale, never on the stage it lies in.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"
#include "worker/layers/stage_model.h"

namespace headrace {

// The rate of `step` (from 1): linear warm-up from 0, then constant, linear or cosine down to
// min_learning_rate at the last step, or inverse square root (rate · sqrt(warmup / step)).
double LearningRate(const v1::TrainingSpec& training, int64_t step);

class Optimizer {
 public:
  // Carves the moments of owned parameters out of `arena` (kOptimizer). All pointers must outlive it.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(const v1::TrainingSpec& training,
                                                           std::vector<Parameter>* parameters,
                                                           Arena* arena, Ops* ops);
  virtual ~Optimizer() = default;
  // Updates all owned parameters with gradients times `gradient_scale` (clipping, Pascanu et al. 2013).
  virtual void Step(int64_t step, double gradient_scale) = 0;
};

}  // namespace headrace
