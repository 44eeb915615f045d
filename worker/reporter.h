// Tells the coordinator what happens here: stages ready, steps, failures, in order and at least
// once. Events wait in a bounded queue while the coordinator is away, so nothing that computes
// waits for it. A coordinator that was started again may not have kept what the one before was told
// last: it is told the latest events again (but for lines of the log), under their old numbers,
// before any new one.
//
//             Report                 delivered
//   a stage ────────▶ queue ─────────────────────────▶ lately, the last 4 MiB
//                       ▲                                │
//                       └──── Resume, another process ───┘
//
// Thread-safe. One a worker; owns one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "headrace/v1/worker.grpc.pb.h"

namespace headrace {

class Reporter {
 public:
  // Bytes of events that may wait: some 200 000 steps. From half of it on events go without the
  // spans of what a stage did.
  static constexpr int64_t kCapacityBytes = int64_t{64} << 20;
  // Bytes of delivered events that are kept: far more than a coordinator leaves unsaved.
  static constexpr int64_t kLatelyBytes = int64_t{4} << 20;

  // `stub` must outlive the reporter. `worker` and `instance` as registered.
  Reporter(v1::WorkerRegistryService::StubInterface* stub, std::string worker,
           std::string instance);
  ~Reporter();  // drops what still waits

  // Numbers the event, stamps it with the time and queues it.
  //   RESOURCE_EXHAUSTED  too much waits already; the event is dropped
  absl::Status Report(v1::StageEvent event);

  // Around a registration: delivers nothing from Hold to Resume, which says which process
  // registered this worker. Else that could be told what is new before what it has to be told
  // again. Hold waits a moment for a delivery in flight; false: it still is, and nothing is held.
  bool Hold();
  void Resume(const std::string& coordinator);

  // Waits until everything queued has been delivered. DEADLINE_EXCEEDED: the coordinator is away.
  absl::Status Flush(absl::Time deadline);

 private:
  struct Queued {
    v1::StageEvent event;
    int64_t bytes = 0;
  };

  void Run();
  // A copy of the front of the queue, in flight from now on; empty: the object is being destroyed.
  v1::ReportEventsRequest NextBatch();
  // One try; true: delivered, or refused for good.
  bool Deliver(const v1::ReportEventsRequest& request);
  // What was in flight is not any more; of `delivered` events the front of the queue is freed.
  void Landed(int delivered);

  v1::WorkerRegistryService::StubInterface* const stub_;
  const std::string worker_, instance_;

  mutable absl::Mutex mu_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Queued> lately_ ABSL_GUARDED_BY(mu_);  // delivered, ascending
  int64_t lately_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool held_ ABSL_GUARDED_BY(mu_) = false, in_flight_ ABSL_GUARDED_BY(mu_) = false;
  std::string coordinator_ ABSL_GUARDED_BY(mu_);  // which process; empty: none yet
  uint64_t last_sequence_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  Cancellation cancellation_;
  std::thread thread_;
};

}  // namespace headrace
