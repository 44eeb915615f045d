// What the code of one stage computes with. All are borrowed, owned by the stage's runner, and used
// by its one compute thread; only `cancelled` is set by others.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "worker/backend/compute_device.h"
#include "worker/backend/ops.h"
#include "worker/data/sampler.h"
#include "worker/layers/stage_model.h"
#include "worker/optimizer/optimizer.h"
#include "worker/pipeline/boundary_codec.h"
#include "worker/pipeline/device_numbers.h"
#include "worker/pipeline/exchange.h"
#include "worker/pipeline/stage_job.h"
#include "worker/pipeline/stash.h"
#include "worker/pipeline/token_io.h"
#include "worker/pipeline/verdict.h"

namespace headrace {

struct StageParts {
  StageModel* model = nullptr;
  Optimizer* optimizer = nullptr;  // training
  ComputeDevice* device = nullptr;
  Ops* ops = nullptr;  // the device's
  TokenIo* tokens = nullptr;
  Stash* stash = nullptr;
  BoundaryCodec* codec = nullptr;
  Exchange* exchange = nullptr;
  // By micro-batch (last stage), of an evaluation's, and by own parameter: all of training.
  DeviceNumbers *losses = nullptr, *evaluation_loss = nullptr, *squares = nullptr;
  const Sampler* sampler = nullptr;  // training: first and last stage
  // Stage 0, training: asked once for each step that goes on, as it is decided: what else all
  // stages do after it (its fate does not count). Empty: nothing.
  std::function<Verdict(int64_t step)> wishes;
  const std::atomic<bool>* cancelled = nullptr;

  // CANCELLED once the stage was told to stop. Looked at between actions.
  absl::Status CheckNotCancelled() const {
    if (*cancelled) return absl::CancelledError("the stage was told to stop");
    return absl::OkStatus();
  }
};

}  // namespace headrace
