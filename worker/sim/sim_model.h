// The layers of one stage on a simulated device: carved and accounted like real ones, but each
// action sleeps for its declared time and touches no tensor. The loss is 0.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"
#include "worker/layers/stage_model.h"

namespace headrace {

// As StageModel::Create, with a device and the ops of CreateSimOps. Forward-only passes take a
// forward's time; Initialise and ZeroGradients take none. Logits must not be called: nothing is
// generated here.
absl::StatusOr<std::unique_ptr<StageModel>> CreateSimModel(const v1::SimDevice& device,
                                                           const StageShape& shape, Arena* arena,
                                                           Ops* ops);

}  // namespace headrace
