// Decides what happens to jobs: an event comes in, state and commands come out. Pure: no I/O, no
// threads, no clock but the times it is given, so a script of events tells everything it will do
// (job_machine_test.cc). One job's way is drawn in job_run.h, a worker's in worker_table.h; this
// holds them together:
//
//   JobSubmitted ─▶ queue (first in, first out) ─▶ PlanJob on the free workers ─▶ JobRun
//                     ▲                               │      ▲                      │
//                     │ at its front                  ▼      │ layer by layer       │ broken, moved
//                     │                            measures its layers (profiling.h)│
//                     └────────────────────────────────────────────────────────────┘
//
// The head of the queue is placed as soon as the free workers can carry it; until then it blocks
// the rest, so that a large job cannot starve behind small ones. A job that all living workers
// together could not carry blocks nobody: it waits for workers to come, and others pass it. Several
// jobs run at once, on different workers.
//
// A job that recovers takes the stages it was asked for, if there are workers for them, else as
// many as there are; numbers do not depend on it. It waits a moment for its own workers to end what
// they do. Workers that had a fault of their own while they served it are used only where others do
// not suffice.
//
// job_machine.cc: what happened. job_machine_requests.cc: what people ask for.
// job_machine_placing.cc: the queue. job_machine_moves.cc: a job moves to more workers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
  // After a restart: the workers of a job that ran have this long to say that they still run it.
  static constexpr absl::Duration kAdoptTime = absl::Seconds(10);
  // A worker's heartbeats may deny its stage for so long: the call that assigns it may be under
  // way.
  static constexpr absl::Duration kIdleGrace = absl::Seconds(4);
  // A job that recovers waits so long for its last workers to end their stages before it takes
  // fewer.
  static constexpr absl::Duration kPatience = absl::Seconds(10);
  // From seeing that a move is worth it to moving, unless a checkpoint is due before; and between
  // two moves of a job.
  static constexpr absl::Duration kMoveTime = absl::Seconds(60);
  // Of a step's expected time: what a move must save.
  static constexpr double kMoveGain = 0.1;

  JobMachine(PlanFunctions plan, int64_t last_job_number, absl::Duration adopt_time = kAdoptTime)
      : plan_(std::move(plan)),
        last_job_number_(last_job_number),
        adopt_time_(adopt_time),
        profiling_(plan_.layers) {}

  // Once, first: jobs that had not ended when the coordinator did, with their checkpoints and last
  // steps. QUEUED, RECOVERING and PAUSED ones go on being that, RUNNING ones wait for their
  // workers.
  void Restore(const std::vector<StoredJob>& living, absl::Time now, Commands* out);

  // Once, first: what was measured before.
  void KnowCosts(const std::vector<StoredLayerCost>& costs) { profiling_.Know(costs); }

  // Appends to `*out`.
  void Handle(const Event& event, absl::Time now, Commands* out);

 private:
  using Runs = std::map<std::string, std::unique_ptr<JobRun>>;
  using Infos = std::vector<v1::WorkerInfo>;
  enum class Stages { kAsked, kAny };
  struct Move {
    std::string considered;  // workers; with the same ones there is nothing new to find
    absl::Time latest = absl::InfiniteFuture();  // when it is made; infinite: none is to be
    absl::Time made = absl::InfinitePast();      // the last one
  };

  // job_machine.cc
  void On(const WorkerJoined& joined, Turn turn);
  void On(const WorkerLost& lost, Turn turn);
  void On(const WorkerBeat& beat, Turn turn);
  void On(const StageReported& reported, Turn turn);
  void On(const CallEnded& call, Turn turn);
  void On(const WeightsHashed& hashed, Turn turn);
  void On(const CheckpointVerified& verified, Turn turn);
  void On(const StoreFailed& failed, Turn turn);
  void On(const TimePassed& passed, Turn turn);
  // Answers a worker that says it runs a stage: go on, or end it.
  void AnswerStanding(const WorkerJoined& joined, Turn turn);
  void Tell(const std::optional<Profiling::News>& news, Turn turn);
  JobRun* FindRun(const std::string& job_id);
  // All jobs, wherever they are.
  std::vector<JobRun*> AllRuns();
  // Runs that are queued, paused or over now go where they belong.
  void SortRuns();

  // job_machine_requests.cc
  void On(const JobSubmitted& submitted, Turn turn);
  void On(const GenerateSubmitted& submitted, Turn turn);
  void On(const CancelRequested& cancel, Turn turn);
  void On(const CheckpointRequested& asked, Turn turn);
  void On(const PauseRequested& pause, Turn turn);
  void On(const ResumeRequested& resume, Turn turn);
  void On(const CordonRequested& cordon, Turn turn);
  void On(const GenerateAbandoned& abandoned, Turn turn);
  absl::Status CheckLiving() const;
  absl::StatusOr<std::unique_ptr<JobRun>> ResumeEnded(const StoredJob& stored, Turn turn);
  // Into the queue; fills in the reply's message with what it waits for.
  void Enqueue(std::unique_ptr<JobRun> run, Reply* reply, Turn turn);
  // The job on this worker, if any, is moved away. Its id.
  std::string Vacate(const std::string& worker, const std::string& why, Turn turn);
  JobRun* FindGenerate(int64_t request);
  int NumGenerates();

  // job_machine_placing.cc
  absl::StatusOr<v1::Plan> PlanOn(const JobRun& run, const Infos& workers, Stages stages) const;
  // Without those that it avoids.
  static Infos Preferred(const JobRun& run, Infos workers);
  // With fewer stages and on workers that it would rather avoid, where it must.
  absl::StatusOr<v1::Plan> PlanFor(const JobRun& run, const Infos& workers) const;
  enum class Placing {
    kLeft,    // the queue: started, or failed
    kBlocks,  // waits for workers that are busy; nobody of its kind may pass
    kPassed,  // waits for workers that are not there; others may pass
  };
  void Place(Turn turn);
  Placing PlaceAt(size_t i, Turn turn);
  // Its last workers that are about to be free; empty: none, or it has waited long enough.
  std::vector<std::string> Awaited(const JobRun& run, absl::Time now);
  void WaitForMore(JobRun* run, const Infos& free, const absl::Status& why, bool busy, Turn turn);
  // True: its layers are being measured, and it waits for that.
  bool Measures(JobRun* run, const Infos& free, Turn turn);
  void StartOn(const v1::Plan& plan, size_t i, Turn turn);
  StateBook::Living LivingAddresses() const;
  void WakeAt(absl::Time time) { wake_at_ = std::min(wake_at_, time); }

  // job_machine_moves.cc
  void ConsiderMoves(Turn turn);
  void MakeMoves(Turn turn);
  // Why the job would do better with these workers besides its own; empty: it would not.
  std::string WhyMove(const JobRun& run, const Infos& free);

  const PlanFunctions plan_;
  int64_t last_job_number_;
  const absl::Duration adopt_time_;
  absl::Time settled_at_ = absl::InfinitePast();
  absl::Time wake_at_ = absl::InfiniteFuture();  // something in the queue waits for this time
  int64_t last_generate_ = 0;
  bool place_ = false;  // something has changed that may let the head of the queue run
  WorkerTable workers_;
  Profiling profiling_;
  std::deque<std::unique_ptr<JobRun>> queue_;
  // What those in the queue wait for, since the last Place: one before them, or one that is about
  // to come back to its front. Simulated jobs ([1]) and real ones ([0]) have workers of their own,
  // so each kind waits for its own only.
  std::array<const JobRun*, 2> blockers_ = {};
  Runs running_;
  Runs paused_;
  std::map<std::string, Move> moves_;  // of running jobs
};

}  // namespace headrace
