// One job's stage on one worker, from assignment to its end, on one thread of its own:
//
//   preparing ──▶ ready ──StartStage──▶ connecting ──▶ running ──▶ saving ──▶ done
//       │           │                       │             │           │
//       └───────────┴───────────────────────┴──── fault, Stop ────────┴────▶ done
//
// The thread owns everything: arena, layers, optimizer, inbox, outbox. All of it is gone when
// done() is true. What happens is told to the coordinator through the Reporter: StageReady,
// StageStep, StageFinished, or StageFailed with one sentence.
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
#include "worker/pipeline/exchange.h"
#include "worker/pipeline/executor.h"
#include "worker/pipeline/flight_recorder.h"
#include "worker/pipeline/span_recorder.h"
#include "worker/pipeline/stage_equipment.h"
#include "worker/pipeline/stage_job.h"
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

  // Stage 0 of a training job: a checkpoint of all stages after the step at hand, or also the end of
  // all of them after it. Others know of it by that step's decision. Never blocks.
  void Control(bool checkpoint, bool leave);

  // What it serves and the last step it has finished, for a coordinator that was away.
  v1::StageStanding standing() const;
  // Trains on for so long while the coordinator is away.
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

  v1::FlightRecord flight_record() const;
  // What the stage did that was not told yet, here or in an event; afterwards it is.
  v1::StageTrace DrainTrace();

 private:
  void Run();
  absl::StatusOr<std::unique_ptr<StageEquipment>> Equip();
  // The stage's life; `equipment` is gone when this returns.
  absl::Status RunStage(StageEquipment* equipment);
  absl::Status Prepare(StageEquipment* equipment);
  absl::Status FetchWeights(StageEquipment* equipment);
  absl::Status FetchData(StageEquipment* equipment);
  absl::StatusOr<std::string> Download(const std::string& sha256, int64_t bytes);
  absl::Status AwaitStart();
  absl::Status Connect(StageEquipment* equipment);
  absl::Status Work(StageEquipment* equipment);
  absl::Status Train(StageEquipment* equipment, Executor* executor, v1::StageFinished* finished);
  absl::Status Save(StageEquipment* equipment, v1::StageFinished* finished);
  void TearDown(StageEquipment* equipment);

  void ReportFault(const absl::Status& status);
  void SendFault(const std::string& sentence, v1::StageFailed failed);
  absl::Status Report(v1::StageEvent event);
  void ReportLog(const std::string& line);
  absl::Status CheckNotStopped() const;
  LinkContext Context(StageEquipment* equipment) const;
  std::vector<v1::Peer> Receivers() const;

  const StageJob job_;
  const WorkerContext context_;
  // Control's, until the next step's decision takes it; and what is finished.
  std::atomic<bool> checkpoint_asked_ = false, leave_asked_ = false;
  std::atomic<int64_t> finished_step_;
  FlightRecorder recorder_;
  SpanRecorder spans_;
  Cancellation cancellation_;            // of transfers and of connecting
  std::atomic<bool> cancelled_ = false;  // of compute

  mutable absl::Mutex mu_;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::string stop_fault_ ABSL_GUARDED_BY(mu_);
  bool fault_told_ ABSL_GUARDED_BY(mu_) = false;
  // What Stop closes. Lock order: mu_, then the inbox's own.
  Inbox* inbox_ ABSL_GUARDED_BY(mu_) = nullptr;
  // Shared, because Stop closes it on another thread while this one may be letting it go.
  std::shared_ptr<Outbox> outbox_ ABSL_GUARDED_BY(mu_);

  // The compute thread's own: where a fault happened.
  std::unique_ptr<Exchange> exchange_;
  std::string blamed_worker_;
  v1::StageEvent end_;  // StageFinished, once there is nothing left to do

  std::thread thread_;
};

}  // namespace headrace
