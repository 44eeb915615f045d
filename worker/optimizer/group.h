// Which constants a parameter is updated with: those of the first group whose glob matches its
// name.
#pragma once

#include "headrace/v1/job.pb.h"
#include "plan/layer_spec.h"

namespace headrace {

struct GroupConstants {
  double weight_decay = 0;
  double learning_rate_scale = 1;

  friend bool operator==(const GroupConstants&, const GroupConstants&) = default;
};

// What the first matching group leaves unsaid is as if none matched: the optimizer's weight decay
// for two or more dimensions, none for vectors, the learning rate as it is.
GroupConstants ConstantsFor(const v1::OptimizerSpec& spec, const ParameterSpec& parameter);

}  // namespace headrace
