// Tells the coordinator what happens here: stages ready, steps, failures, in order and at least
// once. Events wait in a bounded queue while the coordinator is away, so nothing that computes
// waits for it. Thread-safe. One a worker; owns one thread.
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
  // Bytes of events that may wait. A coordinator away for longer than its lease ends the stage,
  // which is what makes events, so this is only reached by a job with a very large number of
  // tensors to hash.
  static constexpr int64_t kCapacityBytes = int64_t{64} << 20;

  // `stub` must outlive the reporter. `worker` and `instance` as registered.
  Reporter(v1::WorkerRegistryService::StubInterface* stub, std::string worker,
           std::string instance);
  ~Reporter();  // drops what still waits

  // Numbers the event, stamps it with the time and queues it.
  //   RESOURCE_EXHAUSTED  too much waits already; the event is dropped
  absl::Status Report(v1::StageEvent event);

  // Waits until everything queued has been delivered. DEADLINE_EXCEEDED: the coordinator is away.
  absl::Status Flush(absl::Time deadline);

 private:
  struct Queued {
    v1::StageEvent event;
    int64_t bytes = 0;
  };

  void Run();
  // A copy of the front of the queue; empty: the object is being destroyed.
  v1::ReportEventsRequest NextBatch();
  // Until it is delivered or refused; false: the object is being destroyed.
  bool Deliver(const v1::ReportEventsRequest& request);
  void Drop(int count);  // from the front of the queue

  v1::WorkerRegistryService::StubInterface* const stub_;
  const std::string worker_, instance_;

  mutable absl::Mutex mu_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_sequence_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  Cancellation cancellation_;
  std::thread thread_;
};

}  // namespace headrace
