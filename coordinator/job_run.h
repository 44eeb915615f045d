// One job, from the queue to its end. Pure: what happened goes in, state and commands come out.
//
//   QUEUED ──────┐        all ready           one finished         all finished
//       ▲        ├─▶ PREPARING ─▶ RUNNING ─────────▶ SAVING ─────────▶ hashing
//       │ placed │       │         │    ▲              │                  │ verified
//   RECOVERING ──┘       │         │    │ all back     │                  ▼
//       ▲                │         │ adopting          │        DONE, or FAILED with
//       │                ▼         ▼    ▼              ▼        weights: the loss is NaN
//       │          ┌─────────────────────────────────────────┐
//       ├─ goes on ┤ collecting, at most 1.2 s:              ├─▶ FAILED: no use in going on
//       │          │ StopCall to every stage; more faults,   │   (recovery.h)
//       │ resume   │ flight records, snapshots come in       ├─▶ CANCELLED
//     PAUSED ◀─────┤                                         │
//                  └─────────────────────────────────────────┘
//
// It collects after a fault or a cancellation, and when all stages have left (by request, at a
// checkpoint) or rolled back. It ends with it when all have answered and the root is known, or the
// time is up; a checkpoint made by leaving is verified first. What is QUEUED or RECOVERING is
// paused and cancelled at once.
//
// `hashing`, `collecting` and `adopting` show as the state before them. A job is `adopting` after
// the coordinator was restarted, until all its workers have said that they still run its stages; if
// they do not, it recovers. RECOVERING jobs wait in the queue, before all others.
//
// Each time it is placed is a generation. It goes on from the latest state there is (state_book.h):
// steps that are done again must give the same (step_history.h) and are not told twice.
//
// job_run.cc: placing and ending. job_run_reports.cc: what stages report. job_run_faults.cc: what
// breaks, and how it goes on. job_run_state.cc: checkpoints, leaving, pausing, rolling back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/blame.h"
#include "coordinator/job_messages.h"
#include "coordinator/recovery.h"
#include "coordinator/state_book.h"
#include "coordinator/step_history.h"
#include "coordinator/step_merger.h"
#include "coordinator/stragglers.h"
#include "coordinator/turn.h"

namespace headrace {

class JobRun {
 public:
  static constexpr absl::Duration kCollectTime = absl::Milliseconds(1200);
  static constexpr absl::Duration kPrepareTime = absl::Minutes(15);
  static constexpr absl::Duration kSaveTime = absl::Minutes(30);
  static constexpr absl::Duration kControlEvery = absl::Seconds(1);  // where it gets no answer
  // What on_nan leaves out before the job fails: it would end with nothing learnt.
  static constexpr int kMostSkipped = 20;    // steps in a row
  static constexpr int kMostRollbacks = 10;  // in a row to the same state

  // A training job, QUEUED. With its checkpoints, if it goes on from one, and its last steps
  // (StepHistory::kMaxSteps of them are of use).
  JobRun(v1::Job job, v1::JobOptions options);
  // A generate request: runs like a job, but nobody lists it and nothing of it is saved.
  JobRun(std::string job_id, const GenerateSubmitted& submitted);

  const v1::Job& job() const { return job_; }
  const v1::JobOptions& options() const { return options_; }
  bool generates() const { return generate_.has_value(); }
  bool simulates() const { return options_.simulate(); }  // on simulated workers
  int64_t request() const { return generate_->request; }
  bool ended() const { return phase_ == Phase::kEnded; }
  bool queued() const { return phase_ == Phase::kQueued; }
  bool paused() const { return phase_ == Phase::kPaused; }
  bool running() const { return phase_ == Phase::kRunning; }
  // In the queue, between two generations.
  bool recovers() const { return queued() && job_.state() == v1::JOB_STATE_RECOVERING; }
  // About to be queued again, as far as can be told: its workers are not to be given away.
  bool returns() const;
  // Is taken off its workers, so that nobody else needs to ask for it.
  bool leaves() const { return leave_.has_value(); }

  // ---- Placing.
  // Queued: writes down what it waits for, if that changed.
  void Wait(const std::string& message, Turn turn);
  // A line for its event log.
  void Note(const std::string& text, Turn turn) { Log(text, turn); }
  // Queued → PREPARING on the plan's workers; workers[k] serves stage k. `living`: whose disks may
  // have what it goes on from.
  void Start(const v1::Plan& plan, const std::vector<v1::WorkerInfo>& workers,
             const StateBook::Living& living, Turn turn);
  // Ends at once, without asking anyone: not placed yet, or (after a restart) nobody to ask.
  void Fail(const std::string& message, Turn turn);
  // Workers to spare this job while others suffice, until their processes are restarted.
  const std::set<std::string>& avoided() const { return recovery_.avoided(); }
  void Forgive(const std::string& worker) { recovery_.Forgive(worker); }
  // Queued: not to be placed before.
  absl::Time not_before() const { return not_before_; }
  // Recovering: when its last generation had ended.
  absl::Time broke_at() const { return broke_at_; }
  // Of its last generation, in order of stages.
  std::vector<v1::Placement> Placement() const;
  // The step whose state it would go on from.
  int64_t PointStep(const StateBook::Living& living) const;

  // ---- Once, first: the coordinator was restarted while this job was not QUEUED nor had ended.
  // RUNNING and SAVING jobs wait for their workers until `deadline`, others recover at once.
  void Restore(absl::Time deadline, Turn turn);
  // A worker has registered. True: it goes on with the stage that it says it has.
  bool OnJoined(const WorkerJoined& joined, Turn turn);
  // What lies on a worker that registers.
  void OnHeld(const std::string& worker, const std::vector<v1::HeldSlice>& held);

  // ---- Requests. FAILED_PRECONDITION: not in this state; says why.
  absl::Status Cancel(const std::string& reason, Turn turn);
  absl::Status Checkpoint(Turn turn);
  absl::Status Pause(Turn turn);
  // PAUSED → QUEUED; one that is just being paused is placed again.
  absl::Status Resume(Turn turn);
  // Off its workers at a checkpoint after the step at hand, and back into the queue. Nothing where
  // it is about to end anyway, or serves nobody.
  void Leave(const std::string& why, Turn turn);
  // Whether Leave costs little now: a checkpoint is due, by its spec.
  bool CheckpointDue(absl::Time now) const;

  // ---- What happens. These ignore what does not concern a job in this phase.
  void OnReport(const std::string& worker, const v1::StageEvent& event, Turn turn);
  void OnCallEnded(const CallEnded& call, Turn turn);
  // A sign of life of a worker.
  void OnSeen(const std::string& worker, absl::Time now);
  void OnWorkerLost(const std::string& worker, const std::string& reason, Turn turn);
  // It lives, but its heartbeats deny the stage it was given.
  void OnWorkerIdle(const std::string& worker, Turn turn);
  void OnStoreFailed(const absl::Status& status, Turn turn);
  void OnWeightsHashed(const absl::StatusOr<std::string>& sha256, Turn turn);
  void OnCheckpointVerified(const CheckpointVerified& verified, Turn turn);
  void OnTime(Turn turn);

 private:
  enum class Phase {
    kQueued,
    kAdopting,
    kPreparing,
    kRunning,
    kSaving,
    kHashing,
    kCollecting,
    kPaused,
    kEnded
  };
  struct Stage {
    std::string worker;
    std::string instance;
    bool present = true;  // kAdopting: it has said that it goes on
    bool ready = false;
    bool connected = false;  // its links are open
    bool left = false;       // StageLeft, StageRollback
    bool stopped = false;    // StopCall answered, or nobody there to answer
    absl::Time seen = absl::InfinitePast();
    std::optional<v1::StageFinished> finished;
    v1::FlightRecord flight_record;
  };
  struct Control {  // what stage 0 is to be told
    bool checkpoint = false, leave = false;
    bool sent_checkpoint = false, sent_leave = false;  // by the call under way
    absl::Time retry_at = absl::InfinitePast();
  };
  enum class LeaveKind { kMove, kPause };
  struct Leaving {
    LeaveKind kind = LeaveKind::kMove;
    std::string why;
  };

  // job_run.cc
  bool Active() const;
  // -1: this worker serves none.
  int64_t StageOf(const std::string& worker) const;
  v1::StageAssignment Assignment(int64_t stage, const std::vector<v1::WorkerInfo>& workers) const;
  absl::Duration WaitTimeout() const;
  absl::Duration SilenceTime() const;  // without a finished step
  void SetStages(const google::protobuf::RepeatedPtrField<v1::Placement>& placement);
  void BeginGeneration(int64_t merged_step, Turn turn);
  void SetState(v1::JobState state, const std::string& message, Turn turn);
  void End(v1::JobState state, const std::string& message, Turn turn);
  void Save(Turn turn);
  void Log(const std::string& source, const std::string& text, double unix_seconds, Turn turn);
  void Log(const std::string& text, Turn turn);

  // job_run_reports.cc
  void OnReady(Stage* stage, Turn turn);
  void OnConnected(int64_t stage, const v1::StageConnected& connected, Turn turn);
  void OnStep(int64_t stage, const v1::StageStep& step, Turn turn);
  void OnWholeStep(v1::StepResult step, Turn turn);
  void OnFinished(int64_t stage, const v1::StageFinished& finished, Turn turn);
  void OnFailed(int64_t stage, const v1::StageFailed& failed, Turn turn);
  void OnToken(int64_t stage, int64_t token, Turn turn);
  void OnTrace(int64_t stage, const v1::StageTrace& trace, Turn turn);
  absl::Status CheckFinished(int64_t stage, const v1::StageFinished& finished) const;
  void AllFinished(Turn turn);
  void EndAfterSteps(Turn turn);

  // job_run_state.cc
  void OnSnapshot(int64_t stage, const v1::StageSnapshot& snapshot, Turn turn);
  void OnBadSlice(const std::string& sha256, const std::string& why, Turn turn);
  void OnLeft(int64_t stage, const v1::StageLeft& left, Turn turn);
  void OnRollback(int64_t stage, const v1::StageRollback& rollback, Turn turn);
  void StageGone(int64_t stage, Turn turn);
  void Ask(bool checkpoint, bool leave, Turn turn);
  void SendControl(Turn turn);
  void OnControlEnded(const absl::Status& status, Turn turn);
  void DropSuperfluous(Turn turn);
  void DropOldSlices(Turn turn);
  void RollBack(Turn turn);
  void EndLeaving(Turn turn);
  void BecomePaused(Turn turn);

  // job_run_faults.cc
  void AddFault(FaultKind kind, int64_t stage, std::string text, std::string blamed, Turn turn);
  void OwnFault(int64_t stage, std::string text, Turn turn);
  // Nobody's but the coordinator's own.
  void CoordinatorFault(const std::string& text, Turn turn);
  void Collect(Turn turn);
  void StopAll(const std::string& reason, Turn turn);
  // Ends collecting if nothing more is worth waiting for.
  void MaybeConclude(Turn turn);
  void Judge(Turn turn);
  // Where a worker is lost and nobody has accused it yet: adds what a neighbour was doing, from its
  // flight record.
  void AddWitness();
  void KeepFlightRecords();
  // kAdopting → kRunning once all workers are there; or not, when the time is up.
  void Adopted(Turn turn);
  void DoNotAdopt(Turn turn);
  // Back into the queue; `failed_at` is the last sign of life of what failed.
  void Requeue(const std::string& cause, absl::Time failed_at, Turn turn);
  void ForgetGeneration();

  v1::Job job_;
  v1::JobOptions options_;
  std::optional<GenerateSubmitted> generate_;
  int64_t tokens_ = 0;

  // Over all generations.
  StateBook book_;
  StepHistory history_;
  Recovery recovery_;
  std::set<std::string> served_by_;                    // workers that may hold slices
  std::set<int64_t> verifying_;                        // steps
  bool has_slices_ = false;                            // workers hold some
  int64_t dropped_before_ = 0;                         // DropSlices
  absl::Time last_checkpoint_ = absl::InfinitePast();  // or when it was started
  absl::Time not_before_ = absl::InfinitePast();
  absl::Time broke_at_ = absl::InfinitePast();
  bool recovering_ = false;  // the last of job_.recoveries() is not over yet
  int skipped_in_a_row_ = 0;
  int64_t rolled_back_to_ = -1;  // the step last rolled back to,
  int rollbacks_to_it_ = 0;      // in a row

  // Of this generation.
  Phase phase_ = Phase::kQueued;
  absl::Time deadline_ = absl::InfiniteFuture();  // of the phase
  std::vector<Stage> stages_;
  StateBook::Point point_;
  bool adopted_ = false;
  bool got_somewhere_ = false;  // a step was done that had not been done before
  std::unique_ptr<StepMerger> merger_;
  std::optional<Stragglers> stragglers_;
  std::string stop_reason_;
  Control control_;
  std::optional<Leaving> leave_;
  std::optional<v1::StageRollback> rollback_;
  std::optional<int64_t> leave_step_;  // some have left after this step,
  bool all_left_ = false;              // all have
  // kCollecting
  std::vector<Fault> faults_;
  absl::Time fault_at_ = absl::InfinitePast();  // the first
  bool bad_slice_ = false;
  bool for_good_ = false;      // not to be recovered from
  std::string cancel_reason_;  // not empty: to be CANCELLED
};

}  // namespace headrace
