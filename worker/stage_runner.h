// One job's stage on one worker, from assignment to its end, on one thread of its own:
//
//   preparing ──▶ ready ──StartStage──▶ connecting ──▶ running ──▶ ending ──▶ done
//       │           │                       │             │           │
//       └───────────┴───────────────────────┴──── fault, Stop ────────┴────▶ done
//
// The thread owns everything: arena, layers, optimizer, inbox, outbox. All of it is gone when
// done() is true. What happens is told to the coordinator through the Reporter: StageReady,
// StageStep and StageSnapshot; at the end StageFinished, StageLeft or StageRollback
// (stage_training.h), or StageFailed with one sentence.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "headrace/v1/worker.pb.h"
#include "worker/checkpoint/snapshot_schedule.h"
#include "worker/pipeline/exchange.h"
#include "worker/pipeline/stage_equipment.h"
#include "worker/pipeline/stage_job.h"
#include "worker/stage_reports.h"
#include "worker/transport/link.h"
#include "worker/worker_context.h"

namespace headrace {

// Thread-safe.
class StageRunner {
 public:
  // Begins to prepare.
  StageRunner(StageJob job, const WorkerContext& context);
  ~StageRunner();  // stops, joins

  const std::string& job_id() const { return job_.job_id; }
  int64_t generation() const { return job_.generation; }

  // All stages are ready: connect and run. FAILED_PRECONDITION: not ready, or started already.
  absl::Status Start();

  // Stage 0 of a training job: a checkpoint of all stages after the step at hand, or also the end
  // of all of them after it. Others know of it by that step's decision. Never blocks.
  void Control(bool checkpoint, bool leave);

  // What it serves and the last step it has finished, for a coordinator that was away.
  v1::StageStanding standing() const;
  // Trains on for so long while the coordinator is away; 0: it does not train, or not yet.
  absl::Duration coordinator_timeout() const;

  // Ends the stage wherever it is: waits are cancelled at once, compute ends after the action at
  // hand. Does not wait for that. With a sentence in `fault` the coordinator is told the stage
  // failed; empty, it knows. Idempotent.
  void Stop(const std::string& fault);

  // After Stop with a fault, for a process that ends before the stage can: reports that fault in
  // its place, without step and micro-batch.
  void ReportUnended();

  // True once the thread has ended and everything it owned is gone; waits for that until
  // `deadline`.
  bool AwaitDone(absl::Time deadline) const;
  bool stopped() const;
  bool done() const { return AwaitDone(absl::InfinitePast()); }

  v1::FlightRecord flight_record() const { return reports_.flight_record(); }
  // What the stage did that was not told yet, here or in an event; afterwards it is.
  v1::StageTrace DrainTrace() { return reports_.DrainTrace(); }

 private:
  void Run();
  absl::StatusOr<std::unique_ptr<StageEquipment>> Equip();
  // The stage's life; `equipment` is gone when this returns.
  absl::Status RunStage(StageEquipment* equipment);
  absl::Status Prepare(StageEquipment* equipment);
  absl::Status AwaitStart();
  absl::Status Connect(StageEquipment* equipment);
  absl::Status Train(StageEquipment* equipment);
  absl::Status RunGenerate(StageEquipment* equipment);
  void FinishLinks();
  void TearDown(StageEquipment* equipment);

  void ReportFault(const absl::Status& status);
  absl::Status CheckNotStopped() const;
  LinkContext Context(StageEquipment* equipment) const;
  std::vector<v1::Peer> Receivers() const;
  std::shared_ptr<Outbox> outbox() const;

  const StageJob job_;
  const WorkerContext context_;
  StageReports reports_;
  SnapshotSchedule schedule_;            // training, stage 0: what Control and time ask for
  Cancellation cancellation_;            // of transfers and of connecting
  std::atomic<bool> cancelled_ = false;  // of compute
  std::atomic<int64_t> finished_step_;

  mutable absl::Mutex mu_;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::string stop_fault_ ABSL_GUARDED_BY(mu_);
  // What Stop closes. Lock order: mu_, then the inbox's own.
  Inbox* inbox_ ABSL_GUARDED_BY(mu_) = nullptr;
  // Shared, because Stop closes it on another thread while this one may be letting it go.
  std::shared_ptr<Outbox> outbox_ ABSL_GUARDED_BY(mu_);

  // The compute thread's own: where a fault happened.
  std::unique_ptr<Exchange> exchange_;
  std::string blamed_worker_, bad_slice_;
  v1::StageEvent end_;  // what the stage ends with, once there is nothing left to do

  std::thread thread_;
};

}  // namespace headrace
