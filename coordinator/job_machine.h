// Decides what happens to jobs: an event comes in, state and commands come out. Pure: no I/O, no
// threads, no clock but the times it is given, so a script of events tells everything it will do
// (job_machine_test.cc). One job's way is drawn in job_run.h, a worker's in worker_table.h; this
// holds them together:
//
//   JobSubmitted ─▶ queue (first in, first out) ─▶ PlanJob on the free workers ─▶ JobRun
//                                                     │      ▲
//                                                     ▼      │ layer by layer (profiling.h)
//                                                  measures its layers, where nobody has yet
//
// The head of the queue is placed as soon as the free workers can carry it; until then it blocks
// the rest, so that a large job cannot starve behind small ones. A job that all living workers
// together could not carry blocks nobody: it waits for workers to come, and others pass it. Several
// jobs run at once, on different workers.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/job_messages.h"
#include "coordinator/job_run.h"
#include "coordinator/profiling.h"
#include "coordinator/store/job_store.h"
#include "coordinator/worker_table.h"
#include "plan/planner/planner.h"

namespace headrace {

// The planner (planner.h), or a test's.
struct PlanFunctions {
  // Says what would make a job fit only with Advice::kGiven, which takes its time.
  std::function<absl::StatusOr<v1::Plan>(const v1::JobSpec&, const v1::Dataset*,
                                         const std::vector<PlanWorker>&, Advice)>
      train;
  std::function<absl::StatusOr<v1::Plan>(const v1::JobSpec&, const std::vector<PlanWorker>&)>
      generate;
  // Which layers of a job to measure (DistinctLayers); empty: FLOPs alone balance its stages.
  Profiling::LayersOf layers = nullptr;
};

std::vector<PlanWorker> ToPlanWorkers(const std::vector<v1::WorkerInfo>& workers);

// Owned and called by one thread.
class JobMachine {
 public:
  static constexpr int kMaxLivingJobs = 1000;
  static constexpr int kMaxGenerates = 16;
  // Jobs that may be passed: each costs two plans whenever something changes.
  static constexpr size_t kMaxPassed = 16;
  // After a restart with jobs in the queue: workers get this long to come back before the first is
  // placed, else a job of `auto` stages would take whichever is first.
  static constexpr absl::Duration kSettleTime = absl::Seconds(2);
  // A worker's heartbeats may deny its stage for so long: the call that assigns it may be under
  // way.
  static constexpr absl::Duration kIdleGrace = absl::Seconds(4);

  JobMachine(PlanFunctions plan, int64_t last_job_number)
      : plan_(std::move(plan)), last_job_number_(last_job_number), profiling_(plan_.layers) {}

  // Once, first: jobs that had not ended when the coordinator did. QUEUED ones queue again, others
  // fail.
  void Restore(const std::vector<StoredJob>& living, absl::Time now, Commands* out);

  // Once, first: what was measured before.
  void KnowCosts(const std::vector<StoredLayerCost>& costs) { profiling_.Know(costs); }

  // Appends to `*out`.
  void Handle(const Event& event, absl::Time now, Commands* out);

 private:
  using Runs = std::map<std::string, std::unique_ptr<JobRun>>;

  void On(const WorkerJoined& joined, Turn turn);
  void On(const WorkerLost& lost, Turn turn);
  void On(const WorkerBeat& beat, Turn turn);
  void On(const JobSubmitted& submitted, Turn turn);
  void On(const GenerateSubmitted& submitted, Turn turn);
  void On(const CancelRequested& cancel, Turn turn);
  void On(const CheckpointRequested& asked, Turn turn);
  void On(const PauseRequested& pause, Turn turn);
  void On(const ResumeRequested& resume, Turn turn);
  void On(const CordonRequested& cordon, Turn turn);
  void On(const GenerateAbandoned& abandoned, Turn turn);
  void On(const StageReported& reported, Turn turn);
  void On(const CallEnded& call, Turn turn);
  void On(const WeightsHashed& hashed, Turn turn);
  void On(const CheckpointVerified& verified, Turn turn);
  void On(const StoreFailed& failed, Turn turn);
  void On(const TimePassed& passed, Turn turn);

  void Tell(const std::optional<Profiling::News>& news, Turn turn);
  absl::StatusOr<v1::Plan> PlanOn(const JobRun& run,
                                  const std::vector<v1::WorkerInfo>& workers) const;
  enum class Placing {
    kLeft,    // the queue: started, or failed
    kBlocks,  // waits for workers that are busy; nobody of its kind may pass
    kPassed,  // waits for workers that are not there; others may pass
  };
  void Place(Turn turn);
  Placing PlaceAt(size_t i, Turn turn);
  // True: its layers are being measured, and it waits for that.
  bool Measures(JobRun* run, const std::vector<v1::WorkerInfo>& free, Turn turn);
  void StartOn(const v1::Plan& plan, size_t i, Turn turn);
  JobRun* FindRun(const std::string& job_id);
  JobRun* FindGenerate(int64_t request);
  int NumGenerates() const;
  void ForgetEnded();

  const PlanFunctions plan_;
  int64_t last_job_number_;
  absl::Time settled_at_ = absl::InfinitePast();
  int64_t last_generate_ = 0;
  bool place_ = false;  // something has changed that may let the head of the queue run
  WorkerTable workers_;
  Profiling profiling_;
  std::deque<std::unique_ptr<JobRun>> queue_;
  // In queue_: what those behind it wait for, since the last Place. Simulated jobs ([1]) and real
  // ones ([0]) have workers of their own, so each kind waits for its own only.
  std::array<const JobRun*, 2> blockers_ = {};
  Runs running_;
};

}  // namespace headrace
