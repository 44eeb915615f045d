// Carries out what the job machine decides. One thread owns the machine: it takes events in order
// of arrival, lets the machine decide, makes what must last durable in one commit, and only then
// tells watchers, clients and workers. A second thread hashes weights, which takes long.
//
//   RPC threads ─┐                                 ┌▶ store (commit)
//   call results ┼▶ mailbox ─▶ machine ─▶ commands ┼▶ watchers, waiting callers
//   lease, time ─┘                                 ├▶ StageCalls ─▶ workers
//                                                  └▶ hashing thread ─▶ mailbox
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/bounded_queue.h"
#include "common/clock.h"
#include "coordinator/generate_stream.h"
#include "coordinator/job_machine.h"
#include "coordinator/metrics.h"
#include "coordinator/registry.h"
#include "coordinator/stage_calls.h"
#include "coordinator/store/store.h"
#include "coordinator/stream_guard.h"
#include "coordinator/trace_buffer.h"
#include "coordinator/watch_hub.h"

namespace headrace {

// Thread-safe.
class JobDriver {
 public:
  struct Parts {  // all must outlive the driver
    const Clock* clock = nullptr;
    Store* store = nullptr;
    Registry* registry = nullptr;
    WatchHub* hub = nullptr;
    Metrics* metrics = nullptr;
    TraceBuffer* traces = nullptr;
    std::vector<StreamGuard*> guards;  // swept as time passes
  };
  struct Submitted {
    std::string job_id;
    std::string message;  // what it waits for
  };

  // Reads the jobs that have not ended; fails as the store does. Runs from then on.
  static absl::StatusOr<std::unique_ptr<JobDriver>> Start(Parts parts, PlanFunctions plan);
  ~JobDriver() { Stop(); }

  // Ends waiting callers with UNAVAILABLE and joins the threads; whoever calls later gets
  // UNAVAILABLE. Jobs stay as they are in the store. Once before the RPCs' server goes, for callers
  // wait here.
  void Stop();

  // Errors as JobMachine; UNAVAILABLE while shutting down; DEADLINE_EXCEEDED if it could not be
  // saved in time.
  absl::StatusOr<Submitted> Submit(const v1::SubmitJobRequest& request, absl::Time deadline);
  absl::Status Cancel(const std::string& job_id, absl::Time deadline);

  // The stream ends with an error if the request cannot be served. Whoever leaves it early says so
  // with Abandon.
  std::shared_ptr<GenerateStream> Generate(const v1::GenerateRequest& request,
                                           const v1::Job& trained);
  void Abandon(const GenerateStream& stream, const std::string& reason);

  // For news from workers. A heartbeat may wait for a tick of 100 ms, and with it all others of that
  // time; everything else is worked on at once. RESOURCE_EXHAUSTED: too much of it is waiting; send
  // it again later.
  absl::Status Post(Event event, int64_t bytes);

 private:
  struct Caller {
    bool done = false;
    absl::Status status;
    Submitted submitted;
  };
  struct Pending {  // a command, and what the store said of it
    Command command;
    int64_t row = 0;
  };

  JobDriver(Parts parts, PlanFunctions plan, int64_t last_job_number);
  void PostInternal(Event event);
  absl::StatusOr<Submitted> Await(int64_t request, absl::Time deadline);
  int64_t NewCaller();

  // The driver's thread.
  void Loop();
  void Work(const std::vector<Event>& events);
  // What takes time by the number of workers: who is lost, who is there. Once a tick.
  void Sweep();
  void Feed(const Event& event);
  std::vector<Event> TakeEvents();
  void Carry();
  absl::Status SaveAll();
  absl::Status SaveOne(Pending* pending);
  absl::Status SaveJobAndTrace(const SaveJob& save);
  void Publish(const Pending& pending);
  void Act(const Command& command);

  void HashLoop();

  const Parts parts_;
  std::unique_ptr<StageCalls> calls_;
  std::atomic<bool> stopping_ = false;
  BoundedQueue<HashWeights> to_hash_{JobMachine::kMaxLivingJobs};

  absl::Mutex mu_;
  std::deque<Event> mailbox_ ABSL_GUARDED_BY(mu_);
  int64_t mailbox_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool urgent_ ABSL_GUARDED_BY(mu_) = false;  // something in the mailbox does not wait
  int64_t last_request_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, Caller> callers_ ABSL_GUARDED_BY(mu_);
  // shared_ptr: the machine's side and the RPC's may each end first.
  std::map<int64_t, std::shared_ptr<GenerateStream>> generates_ ABSL_GUARDED_BY(mu_);

  // Owned by the driver's thread.
  JobMachine machine_;
  Commands commands_;
  std::deque<Pending> unsaved_;
  bool store_broken_ = false;
  absl::Time swept_ = absl::InfinitePast();  // on the real clock

  std::thread thread_;
  std::thread hasher_;
};

}  // namespace headrace
