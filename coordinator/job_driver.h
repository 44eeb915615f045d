// Carries out what the job machine decides. One thread owns the machine: it takes events in order
// of arrival, lets the machine decide, makes what must last durable in one commit, and only then
// tells watchers, clients and workers.
//
//   RPC threads ─┐                                 ┌▶ store (commit)
//   call results ┼▶ mailbox ─▶ machine ─▶ commands ┼▶ watchers, waiting callers
//   lease, time ─┘                                 ├▶ StageCalls ─▶ workers
//                                                  └▶ BlobKeeper ─▶ mailbox
//
// While the store takes nothing (its disk is full, or away), jobs train on and what is to be saved
// waits, with all that must not be told before it is saved: replies, news to watchers, new stages.
// It is tried again every half second; after `store_patience` running jobs end.
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
#include "common/clock.h"
#include "coordinator/blob_keeper.h"
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
    absl::Duration store_patience = absl::Seconds(60);
    absl::Duration adopt_time = JobMachine::kAdoptTime;
  };
  struct Answer {
    std::string job_id;   // a Cordon's: that is being moved away; empty: none
    std::string message;  // what it waits for
    int64_t step = 0;  // a Checkpoint's: it will be of a later one; a Resume's: it goes on from it
  };
  // Of commands that wait for the store. With more running jobs end before store_patience is over.
  static constexpr size_t kMaxWaiting = 200'000;

  // Reads the jobs that have not ended; fails as the store does. Runs from then on.
  static absl::StatusOr<std::unique_ptr<JobDriver>> Start(Parts parts, PlanFunctions plan);
  ~JobDriver() { Stop(); }

  // Works through what workers have reported so far and saves it, ends waiting callers with
  // UNAVAILABLE and joins the threads; whoever calls later gets UNAVAILABLE. Jobs stay as they are
  // in the store. Once before the RPCs' server goes, for callers wait here.
  void Stop();

  // Errors as JobMachine; UNAVAILABLE while shutting down; DEADLINE_EXCEEDED if it could not be
  // saved in time.
  // `from_job`: whose checkpoint it begins from, at request.from_step; empty: no one's.
  absl::StatusOr<Answer> Submit(const v1::SubmitJobRequest& request, const std::string& from_job,
                                absl::Time deadline);
  absl::Status Cancel(const std::string& job_id, absl::Time deadline);
  absl::StatusOr<Answer> Checkpoint(const std::string& job_id, absl::Time deadline);
  absl::StatusOr<Answer> Pause(const std::string& job_id, absl::Time deadline);
  absl::StatusOr<Answer> Resume(const std::string& job_id, absl::Time deadline);
  absl::StatusOr<Answer> Cordon(const v1::CordonWorkerRequest& request, absl::Time deadline);

  // The stream ends with an error if the request cannot be served. Whoever leaves it early says so
  // with Abandon.
  std::shared_ptr<GenerateStream> Generate(const v1::GenerateRequest& request,
                                           const v1::Job& trained);
  void Abandon(const GenerateStream& stream, const std::string& reason);

  // For news from workers. A heartbeat may wait for a tick of 100 ms, and with it all others of
  // that time; everything else is worked on at once.
  //   RESOURCE_EXHAUSTED  too much of it is waiting; send it again later
  //   UNAVAILABLE         while shutting down: it would be lost
  absl::Status Post(Event event, int64_t bytes);

 private:
  struct Caller {
    bool done = false;
    absl::Status status;
    Answer answer;
  };
  struct Pending {  // a command, and what the store said of it
    Command command;
    int64_t row = 0;
  };

  JobDriver(Parts parts, PlanFunctions plan, int64_t last_job_number);
  static absl::Status ShuttingDown() {
    return absl::UnavailableError("the coordinator shuts down");
  }
  void PostInternal(Event event);
  // Puts the event `make(number of the caller)` into the mailbox and waits for its Reply.
  template <typename Make>
  absl::StatusOr<Answer> Ask(Make make, absl::Time deadline);
  absl::StatusOr<Answer> Await(int64_t request, absl::Time deadline);
  int64_t NewCaller();

  // The driver's thread.
  void Loop();
  void Work(std::vector<Event> events);
  void Flush(std::vector<Event> events);
  // What takes time by the number of workers: who is lost, who is there. Once a tick.
  void Sweep();
  // False: there is nothing for the machine to decide.
  bool Prepare(Event* event);
  absl::Status LoadForMachine(Event* event);
  void Feed(const Event& event);
  std::vector<Event> TakeEvents();
  std::vector<Event> TakeMailbox() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Carry();
  void CarryWithoutStore(const absl::Status& status);
  absl::Status SaveAll();
  absl::Status SaveOne(Pending* pending);
  absl::Status SaveJobAndTrace(const SaveJob& save);
  void Publish(const Pending& pending);
  void Act(const Command& command);

  const Parts parts_;
  std::unique_ptr<StageCalls> calls_;
  std::atomic<bool> stopping_ = false;

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
  std::deque<Pending> waiting_;  // to be carried out, in order, once what is among them is saved
  struct {
    absl::Status status;  // OK: it takes what it is given
    absl::Time since;     // it does not
    absl::Time retry = absl::InfinitePast();
    bool told = false;  // the machine knows
  } store_state_;
  absl::Time swept_ = absl::InfinitePast();  // on the real clock

  std::thread thread_;
  std::unique_ptr<BlobKeeper> keeper_;
};

}  // namespace headrace
