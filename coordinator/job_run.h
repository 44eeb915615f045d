// One job, from the queue to its end. Pure: what happened goes in, state and commands come out.
//
//            placed           all stages ready     first one finished    all finished
//   QUEUED ─────────▶ PREPARING ─────────▶ RUNNING ─────────▶ SAVING ─────────▶ hashing
//     │                   │                   │                 │                  │
//     │ cancel            │  fault, cancel    │                 │                  │ weights
//     verified ▼                   └───────────┬───────┴─────────────────┘                  ▼
//  CANCELLED                          ▼                               DONE, or FAILED keeping the
//                       collecting, at most 1.2 s                     weights (training stopped
//                       StopCall to every stage; more                 itself: the loss became NaN)
//                       faults and flight records come in
//                                     │ all answered and the root known, or the time is up
//                                     ▼
//                             FAILED, CANCELLED
//
// `hashing` and `collecting` show as the state before them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/blame.h"
#include "coordinator/job_messages.h"
#include "coordinator/step_merger.h"
#include "coordinator/turn.h"

namespace headrace {

class JobRun {
 public:
  static constexpr absl::Duration kCollectTime = absl::Milliseconds(1200);
  static constexpr absl::Duration kPrepareTime = absl::Minutes(15);
  static constexpr absl::Duration kSaveTime = absl::Minutes(30);

  // A training job, QUEUED.
  JobRun(v1::Job job, v1::JobOptions options);
  // A generate request: runs like a job, but nobody lists it and nothing of it is saved.
  JobRun(std::string job_id, const GenerateSubmitted& submitted);

  const v1::Job& job() const { return job_; }
  bool generates() const { return generate_.has_value(); }
  bool simulates() const { return options_.simulate(); }  // on simulated workers
  int64_t request() const { return generate_->request; }
  bool ended() const { return phase_ == Phase::kEnded; }
  bool queued() const { return phase_ == Phase::kQueued; }

  // Queued: writes down what it waits for, if that changed.
  void Wait(const std::string& message, Turn turn);
  // A line for its event log.
  void Note(const std::string& text, Turn turn) { Log(text, turn); }
  // Queued → PREPARING on the plan's workers; workers[k] serves stage k.
  void Start(const v1::Plan& plan, const std::vector<v1::WorkerInfo>& workers, Turn turn);
  // Ends at once, without asking anyone: not placed yet, or (after a restart) nobody to ask.
  void Fail(const std::string& message, Turn turn);
  // FAILED_PRECONDITION: it has ended or is about to.
  absl::Status Cancel(const std::string& reason, Turn turn);

  // These ignore what does not concern a job in this phase.
  void OnReport(const std::string& worker, const v1::StageEvent& event, Turn turn);
  void OnCallEnded(const CallEnded& call, Turn turn);
  void OnWorkerLost(const std::string& worker, const std::string& reason, Turn turn);
  // It lives, but its heartbeats deny the stage it was given.
  void OnWorkerIdle(const std::string& worker, Turn turn);
  void OnStoreFailed(const absl::Status& status, Turn turn);
  void OnWeightsHashed(const absl::StatusOr<std::string>& sha256, Turn turn);
  void OnTime(Turn turn);

 private:
  enum class Phase { kQueued, kPreparing, kRunning, kSaving, kHashing, kCollecting, kEnded };
  struct Stage {
    std::string worker;
    std::string instance;
    bool ready = false;
    bool connected = false;  // its links are open
    bool stopped = false;    // StopCall answered, or nobody there to answer
    std::optional<v1::StageFinished> finished;
    v1::FlightRecord flight_record;
  };

  bool Active() const;
  // -1: this worker serves none.
  int64_t StageOf(const std::string& worker) const;
  v1::StageAssignment Assignment(int64_t stage, const std::vector<v1::WorkerInfo>& workers) const;
  absl::Duration WaitTimeout() const;

  void OnReady(Stage* stage, Turn turn);
  void OnConnected(int64_t stage, const v1::StageConnected& connected, Turn turn);
  void OnStep(int64_t stage, const v1::StageStep& step, Turn turn);
  void OnFinished(int64_t stage, const v1::StageFinished& finished, Turn turn);
  void OnFailed(int64_t stage, const v1::StageFailed& failed, Turn turn);
  void OnToken(int64_t stage, int64_t token, Turn turn);
  void OnTrace(int64_t stage, const v1::StageTrace& trace, Turn turn);
  absl::Status CheckFinished(int64_t stage, const v1::StageFinished& finished) const;
  void AllFinished(Turn turn);
  void EndAfterSteps(Turn turn);

  void AddFault(FaultKind kind, int64_t stage, std::string text, std::string blamed, Turn turn);
  void OwnFault(int64_t stage, std::string text, Turn turn);
  void Collect(Turn turn);
  void StopAll(const std::string& reason, Turn turn);
  // Ends collecting if nothing more is worth waiting for.
  void MaybeConclude(Turn turn);
  // Where a worker is lost and nobody has accused it yet: adds what a neighbour was doing, from its
  // flight record.
  void AddWitness();

  void SetState(v1::JobState state, const std::string& message, Turn turn);
  void End(v1::JobState state, const std::string& message, Turn turn);
  void Save(Turn turn);
  void Log(const std::string& source, const std::string& text, double unix_seconds, Turn turn);
  void Log(const std::string& text, Turn turn);

  v1::Job job_;
  v1::JobOptions options_;
  std::optional<GenerateSubmitted> generate_;
  int64_t tokens_ = 0;

  Phase phase_ = Phase::kQueued;
  absl::Time deadline_ = absl::InfiniteFuture();  // of the phase
  std::vector<Stage> stages_;
  std::unique_ptr<StepMerger> merger_;
  std::string stop_reason_;
  // kCollecting
  std::vector<Fault> faults_;
  std::string cancel_reason_;  // not empty: to be CANCELLED
};

}  // namespace headrace
