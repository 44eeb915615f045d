#include "worker/optimizer/group.h"

#include <fnmatch.h>

namespace headrace {

GroupConstants ConstantsFor(const v1::OptimizerSpec& spec, const ParameterSpec& parameter) {
  GroupConstants constants;
  if (parameter.shape.size() >= 2) constants.weight_decay = spec.weight_decay();
  for (const v1::ParameterGroup& group : spec.groups()) {
    if (fnmatch(group.match().c_str(), parameter.name.c_str(), 0) != 0) continue;
    if (group.has_weight_decay()) constants.weight_decay = group.weight_decay();
    if (group.has_learning_rate_scale()) {
      constants.learning_rate_scale = group.learning_rate_scale();
    }
    break;
  }
  return constants;
}

}  // namespace headrace
