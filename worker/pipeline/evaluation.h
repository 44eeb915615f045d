// Validation loss of the model as it stands: forward only, without dropout, over the same
// mini-batches every time. Activations go down the pipeline as in training; nothing comes up.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/pipeline/stage_parts.h"

namespace headrace {

// Owned by the compute thread.
class Evaluation {
 public:
  Evaluation(const StageJob* job, const StageParts& parts);

  // One is due after every `eval_every` steps and after the last step.
  bool IsDueAfter(int64_t step) const;
  // Mean loss in nats per token, summed in ascending order of micro-batches; the last stage knows
  // it.
  //   CANCELLED, errors of the exchange and of the device
  absl::StatusOr<double> Run(int64_t step);

 private:
  absl::StatusOr<double> RunMicroBatch(int64_t step, int64_t batch, int m);
  // The stage's input; the stash, empty between mini-batches, keeps it until Release(m).
  absl::StatusOr<const void*> TakeBoundary(int64_t batch, int m);

  const StageJob& job_;
  const StageParts parts_;
};

}  // namespace headrace
