// Brings what a stage begins with to this worker and into its equipment: weights, or the state that
// training goes on from, and the tokens of the first and the last stage.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "worker/pipeline/flight_recorder.h"
#include "worker/pipeline/stage_equipment.h"
#include "worker/pipeline/stage_job.h"
#include "worker/worker_context.h"

namespace headrace {

// When to give a transfer up: one slower than 1 MiB/s, after a minute's grace for retries, is not
// one to wait for.
absl::Time TransferDeadline(int64_t bytes);

// Owned by the stage's thread. All pointers must outlive the object.
class StageFetch {
 public:
  StageFetch(const StageJob* job, const WorkerContext* context, FlightRecorder* recorder,
             Cancellation* cancellation);

  // Fills weights and optimizer: from the state after start_step, else from given weights, else
  // from the seed.
  //   CANCELLED           the stage was told to stop
  //   DATA_LOSS, NOT_FOUND, INVALID_ARGUMENT  a slice is damaged, nowhere or not what it should be
  //   else as DownloadBlob, FetchSlice, LoadWeights, LoadState
  absl::Status Weights(StageEquipment* equipment);
  // Errors as DownloadBlob and StageEquipment::OpenData.
  absl::Status Data(StageEquipment* equipment);

  // The hash of the slice of the state that made Weights fail by what it is; empty: none did.
  const std::string& bad_slice() const { return bad_slice_; }

 private:
  absl::Status GivenWeights(StageEquipment* equipment);
  absl::Status State(StageEquipment* equipment);
  absl::StatusOr<std::string> Download(const std::string& sha256, int64_t bytes);
  // It has parameters that this stage needs.
  bool Needs(const v1::WeightsSlice& slice) const;

  const StageJob& job_;
  const WorkerContext& context_;
  FlightRecorder* const recorder_;
  Cancellation* const cancellation_;
  std::string bad_slice_;
};

}  // namespace headrace
