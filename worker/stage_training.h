// One stage's part of a training job, from the state it begins with to the event it ends with:
//
//            ┌────────────────────────────┐
//            ▼                            │
//   ──▶ run a step ──▶ report it ──▶ keep the state, if the verdict says so
//            │                            │
//            ├─ last step done, or stop   │ leave
//            │     └▶ upload the weights  └▶ wait for the checkpoint ──▶ StageLeft
//            │           └▶ StageFinished
//            └─ rollback ──▶ wait for earlier checkpoints ──▶ StageRollback
//
// Owned by the stage's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "worker/checkpoint/snapshot_schedule.h"
#include "worker/checkpoint/snapshotter.h"
#include "worker/pipeline/executor.h"
#include "worker/pipeline/stage_equipment.h"
#include "worker/stage_reports.h"
#include "worker/worker_context.h"

namespace headrace {

class StageTraining {
 public:
  // What a training works with; all of it must outlive the training. `schedule` is what stage 0
  // goes by; `finished_step` is kept up to date for others.
  struct Parts {
    const StageJob* job = nullptr;
    const WorkerContext* context = nullptr;
    StageEquipment* equipment = nullptr;
    Exchange* exchange = nullptr;
    StageReports* reports = nullptr;
    SnapshotSchedule* schedule = nullptr;
    Cancellation* cancellation = nullptr;          // of transfers
    const std::atomic<bool>* cancelled = nullptr;  // of compute
    std::atomic<int64_t>* finished_step = nullptr;
  };

  explicit StageTraining(const Parts& parts);
  // Whatever is still being written is dropped; `cancellation` is cancelled.
  ~StageTraining();

  // From the step after start_step until the last one, a verdict that ends it, or an error: as
  // Executor::RunStep, or RESOURCE_EXHAUSTED: the coordinator was away for too many reports.
  absl::Status RunSteps();

  // What comes after, once neighbours need nothing any more: weights and checkpoints get to where
  // they belong. Returns the event that the stage ends with, to be sent when everything it owns is
  // gone. A checkpoint that gets nowhere is told in it, or in the log.
  //   CANCELLED  the stage was told to stop
  //   RESOURCE_EXHAUSTED  the coordinator has had no room for the weights for a minute
  //   else as WriteWeightsSlice, UploadBlob
  absl::StatusOr<v1::StageEvent> End();

 private:
  Verdict Wishes(int64_t step);
  absl::Status ReportStep(StepOutcome* outcome);
  absl::StatusOr<v1::StageFinished> Save();
  absl::Status UploadWeights(const std::string& path, const v1::WeightsSlice& slice);
  absl::Time LongestWait() const;  // for all checkpoints
  absl::Status CheckNotStopped() const;

  const Parts parts_;
  const StageJob& job_;
  Snapshotter snapshotter_;
  Executor executor_;
  // Of the step that ended it: what, why and which.
  Verdict verdict_;
  std::string reason_;
  int64_t step_ = 0;
  int64_t sent_bytes_ = 0, received_bytes_ = 0;  // told to the metrics
};

}  // namespace headrace
