// Phases of a job and their ends; what stages report is in job_run_reports.cc.
#include "coordinator/job_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/store/job_store.h"

namespace headrace {
namespace {

constexpr char kSource[] = "coordinator";
constexpr double kShortestWait_s = 60;
constexpr double kStepsPerWait = 20;  // predicted steps one wait may take

std::string Names(const std::vector<v1::WorkerInfo>& workers) {
  return absl::StrJoin(workers, ", ", [](std::string* text, const v1::WorkerInfo& worker) {
    text->append(worker.name());
  });
}

// What the stages' cut rests on, where it is more than FLOPs.
std::string HowCosted(const v1::Plan& plan) {
  int measured = 0, mixed = 0;
  for (const v1::StagePlan& stage : plan.stage()) {
    measured += stage.cost_source() == v1::COST_SOURCE_MEASURED ? 1 : 0;
    mixed += stage.cost_source() == v1::COST_SOURCE_MIXED ? 1 : 0;
  }
  if (measured + mixed == 0) return "";
  return measured == plan.stage_size() ? ", balanced by measured layers"
                                       : ", balanced by measured layers and FLOPs";
}

bool NobodyAnswers(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

std::string CallName(CallKind kind) {
  switch (kind) {
    case CallKind::kAssign:
      return "AssignStage";
    case CallKind::kStart:
      return "StartStage";
    case CallKind::kStop:
      return "StopStage";
    case CallKind::kProfile:
      return "ProfileLayers";
    case CallKind::kControl:
      return "ControlStage";
  }
  return "call";
}

}  // namespace

JobRun::JobRun(v1::Job job, v1::JobOptions options)
    : job_(std::move(job)), options_(std::move(options)) {}

JobRun::JobRun(std::string job_id, const GenerateSubmitted& submitted) : generate_(submitted) {
  job_.set_id(std::move(job_id));
  job_.set_name(submitted.trained.name());
  job_.set_state(v1::JOB_STATE_QUEUED);
  *job_.mutable_spec() = submitted.trained.spec();
  *job_.mutable_dataset() = submitted.trained.dataset();
}

bool JobRun::Active() const {
  return phase_ == Phase::kPreparing || phase_ == Phase::kRunning || phase_ == Phase::kSaving;
}

int64_t JobRun::StageOf(const std::string& worker) const {
  for (size_t k = 0; k < stages_.size(); ++k) {
    if (stages_[k].worker == worker) return static_cast<int64_t>(k);
  }
  return -1;
}

absl::Duration JobRun::WaitTimeout() const {
  const double asked_s = job_.spec().pipeline().wait_timeout_s();
  if (asked_s > 0) return absl::Seconds(asked_s);
  return absl::Seconds(std::max(kShortestWait_s, kStepsPerWait * job_.plan().step_s()));
}

void JobRun::Wait(const std::string& message, Turn turn) {
  if (message == job_.message()) return;
  SetState(v1::JOB_STATE_QUEUED, message, turn);
  if (!message.empty()) Log(message, turn);
}

v1::StageAssignment JobRun::Assignment(int64_t stage,
                                       const std::vector<v1::WorkerInfo>& workers) const {
  v1::StageAssignment assignment;
  assignment.set_job_id(job_.id());
  assignment.set_generation(job_.generation());
  assignment.set_stage(stage);
  *assignment.mutable_spec() = job_.spec();
  *assignment.mutable_plan() = job_.plan();
  assignment.mutable_plan()->clear_grid();  // for people
  *assignment.mutable_dataset() = job_.dataset();
  for (size_t k = 0; k < workers.size(); ++k) {
    v1::Peer* peer = assignment.add_peers();
    peer->set_stage(static_cast<int64_t>(k));
    peer->set_worker(workers[k].name());
    peer->set_address(workers[k].address());
    *peer->mutable_host() = workers[k].host();
  }
  *assignment.mutable_options() = options_;
  assignment.set_wait_timeout_ms(absl::ToInt64Milliseconds(WaitTimeout()));
  if (generates()) {
    *assignment.mutable_weights() = generate_->trained.weights();
    *assignment.mutable_generate()->mutable_request() = generate_->generate;
  }
  return assignment;
}

void JobRun::Start(const v1::Plan& plan, const std::vector<v1::WorkerInfo>& workers, Turn turn) {
  *job_.mutable_plan() = plan;
  job_.set_generation(job_.generation() + 1);
  job_.set_started_unix_s(absl::ToDoubleSeconds(turn.now - absl::UnixEpoch()));
  stages_.clear();
  for (const v1::WorkerInfo& worker : workers) {
    Stage& stage = stages_.emplace_back();
    stage.worker = worker.name();
    stage.instance = worker.instance();
  }
  merger_ = std::make_unique<StepMerger>(static_cast<int64_t>(workers.size()));
  phase_ = Phase::kPreparing;
  deadline_ = turn.now + kPrepareTime;
  SetState(v1::JOB_STATE_PREPARING, "", turn);
  Log(absl::StrCat("placed on ", Names(workers), " (generation ", job_.generation(), ")",
                   HowCosted(plan)),
      turn);
  for (size_t k = 0; k < workers.size(); ++k) {
    turn.out->push_back(AssignCall{workers[k].name(), workers[k].instance(),
                                   Assignment(static_cast<int64_t>(k), workers)});
  }
}

void JobRun::Fail(const std::string& message, Turn turn) {
  End(v1::JOB_STATE_FAILED, message, turn);
}

absl::Status JobRun::Cancel(const std::string& reason, Turn turn) {
  if (phase_ == Phase::kQueued) {
    End(v1::JOB_STATE_CANCELLED, reason, turn);
    return absl::OkStatus();
  }
  if (phase_ == Phase::kCollecting && !cancel_reason_.empty()) return absl::OkStatus();
  if (!Active() && phase_ != Phase::kHashing) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_.id(), ended() ? " has ended" : " is failing already"));
  }
  cancel_reason_ = reason;
  Log(reason, turn);
  // While the weights are hashed no worker serves this job any more.
  if (phase_ == Phase::kHashing) {
    End(v1::JOB_STATE_CANCELLED, reason, turn);
  } else {
    Collect(turn);
  }
  return absl::OkStatus();
}

void JobRun::OnCallEnded(const CallEnded& call, Turn turn) {
  const int64_t k = StageOf(call.worker);
  if (k < 0 || call.generation != job_.generation()) return;
  Stage& stage = stages_[k];
  if (call.kind != CallKind::kStop) {
    if (call.status.ok() || !(Active() || phase_ == Phase::kCollecting)) return;
    const FaultKind kind = NobodyAnswers(call.status) ? FaultKind::kLost : FaultKind::kOwn;
    AddFault(kind, k, absl::StrCat(CallName(call.kind), ": ", call.status.message()), "", turn);
    return;
  }
  if (phase_ != Phase::kCollecting) return;
  OnTrace(k, call.stop.trace(), turn);
  if (call.status.ok() && stage.flight_record.entries().empty()) {
    stage.flight_record = call.stop.flight_record();
  }
  if (!call.status.ok() && !stage.stopped) {
    // Refused or reset: the process is gone. Too slow: it may only be busy.
    const FaultKind kind = absl::IsUnavailable(call.status) ? FaultKind::kLost : FaultKind::kSilent;
    faults_.push_back(Fault{kind, stage.worker, k, std::string(call.status.message()), ""});
  }
  stage.stopped = true;
  MaybeConclude(turn);
}

void JobRun::OnWorkerLost(const std::string& worker, const std::string& reason, Turn turn) {
  const int64_t k = StageOf(worker);
  if (k < 0) return;
  // What it had to give is in the store.
  if (Active() && stages_[k].finished.has_value()) {
    stages_[k].stopped = true;
    return;
  }
  if (!Active() && phase_ != Phase::kCollecting) return;
  stages_[k].stopped = true;
  AddFault(FaultKind::kLost, k, reason, "", turn);
}

void JobRun::OnWorkerIdle(const std::string& worker, Turn turn) {
  const int64_t k = StageOf(worker);
  if (k < 0 || !Active() || stages_[k].finished.has_value()) return;
  AddFault(FaultKind::kLost, k, "its heartbeats say that it serves no stage", "", turn);
}

void JobRun::OnStoreFailed(const absl::Status& status, Turn turn) {
  if (!Active()) return;
  // Nobody's but the coordinator's own.
  faults_.push_back(Fault{FaultKind::kOwn, "", 0,
                          absl::StrCat("the coordinator cannot save the job: ", status.message()),
                          ""});
  Collect(turn);
}

void JobRun::OnTime(Turn turn) {
  if (turn.now < deadline_) return;
  if (phase_ == Phase::kCollecting) {
    for (size_t k = 0; k < stages_.size(); ++k) {
      if (stages_[k].stopped) continue;
      stages_[k].stopped = true;
      faults_.push_back(Fault{FaultKind::kSilent, stages_[k].worker, static_cast<int64_t>(k),
                              "StopStage: no answer", ""});
    }
    MaybeConclude(turn);
    return;
  }
  if (!Active()) return;
  // Whose turn it was, as far as can be told from here.
  size_t late = 0;
  while (late + 1 < stages_.size() &&
         (phase_ == Phase::kPreparing ? stages_[late].ready : stages_[late].finished.has_value())) {
    ++late;
  }
  const char* const what = phase_ == Phase::kPreparing ? "was not ready in time"
                           : phase_ == Phase::kSaving  ? "did not finish saving in time"
                                                       : "finished no step for too long";
  OwnFault(static_cast<int64_t>(late),
           absl::StrCat("worker ", stages_[late].worker, " (stage ", late, ") ", what,
                        ", after step ", job_.step()),
           turn);
}

void JobRun::AddFault(FaultKind kind, int64_t stage, std::string text, std::string blamed,
                      Turn turn) {
  faults_.push_back(Fault{kind, stages_[stage].worker, stage, std::move(text), std::move(blamed)});
  if (phase_ == Phase::kCollecting) {
    MaybeConclude(turn);
  } else {
    Collect(turn);
  }
}

void JobRun::OwnFault(int64_t stage, std::string text, Turn turn) {
  AddFault(FaultKind::kOwn, stage, std::move(text), "", turn);
}

void JobRun::Collect(Turn turn) {
  phase_ = Phase::kCollecting;
  deadline_ = turn.now + kCollectTime;
  StopAll(cancel_reason_.empty() ? "the job has failed" : cancel_reason_, turn);
  MaybeConclude(turn);
}

void JobRun::StopAll(const std::string& reason, Turn turn) {
  for (const Stage& stage : stages_) {
    if (stage.stopped) continue;
    turn.out->push_back(
        StopCall{stage.worker, stage.instance, job_.id(), job_.generation(), reason});
  }
}

void JobRun::MaybeConclude(Turn turn) {
  const bool all_stopped =
      std::all_of(stages_.begin(), stages_.end(), [](const Stage& stage) { return stage.stopped; });
  if (!all_stopped) return;
  if (!cancel_reason_.empty()) {
    End(v1::JOB_STATE_CANCELLED, cancel_reason_, turn);
    return;
  }
  // Everyone has answered, but nobody has admitted to anything yet: its report may be on the way.
  if (!RootIsKnown(faults_) && turn.now < deadline_) return;
  AddWitness();
  std::vector<std::string> workers;
  for (size_t k = 0; k < stages_.size(); ++k) {
    workers.push_back(stages_[k].worker);
    v1::FlightRecord record = stages_[k].flight_record;
    record.set_worker(stages_[k].worker);
    record.set_stage(static_cast<int64_t>(k));
    *job_.add_flight_records() = std::move(record);
  }
  End(v1::JOB_STATE_FAILED, Verdict(faults_, workers, job_.step()), turn);
}

void JobRun::AddWitness() {
  const auto lost = std::find_if(faults_.begin(), faults_.end(),
                                 [](const Fault& fault) { return fault.kind == FaultKind::kLost; });
  const bool accused = std::any_of(faults_.begin(), faults_.end(), [](const Fault& fault) {
    return fault.kind == FaultKind::kAccusation;
  });
  if (lost == faults_.end() || accused) return;
  const std::string culprit = lost->worker;
  // Its neighbours know best, the one it sends to first.
  for (const int64_t k : {lost->stage + 1, lost->stage - 1}) {
    if (k < 0 || k >= static_cast<int64_t>(stages_.size())) continue;
    const auto& entries = stages_[k].flight_record.entries();
    if (entries.empty()) continue;
    // "04:53:56.123456 step 12, micro-batch 3: waiting for the gradient from stage 1 (worker w1)"
    const std::string& last = *entries.rbegin();
    const size_t step = last.find(" step ");
    if (step == std::string::npos) continue;
    faults_.push_back(Fault{FaultKind::kAccusation, stages_[k].worker, k,
                            absl::StrCat("worker ", stages_[k].worker, " (stage ", k, ") was at ",
                                         last.substr(step + 1)),
                            culprit});
    return;
  }
}

void JobRun::SetState(v1::JobState state, const std::string& message, Turn turn) {
  job_.set_state(state);
  job_.set_message(message);
  Save(turn);
}

void JobRun::End(v1::JobState state, const std::string& message, Turn turn) {
  phase_ = Phase::kEnded;
  deadline_ = absl::InfiniteFuture();
  if (generates()) {
    absl::Status status;
    if (state == v1::JOB_STATE_FAILED) status = absl::AbortedError(message);
    if (state == v1::JOB_STATE_CANCELLED) status = absl::CancelledError(message);
    turn.out->push_back(EndGenerate{generate_->request, status});
    return;
  }
  job_.set_ended_unix_s(absl::ToDoubleSeconds(turn.now - absl::UnixEpoch()));
  std::string line = ShortName(state);
  if (!message.empty()) absl::StrAppend(&line, ": ", message);
  Log(line, turn);
  SetState(state, message, turn);
}

void JobRun::Save(Turn turn) {
  if (!generates()) turn.out->push_back(SaveJob{job_, options_});
}

void JobRun::Log(const std::string& source, const std::string& text, double unix_seconds,
                 Turn turn) {
  if (generates()) return;
  v1::JobEvent event;
  event.set_unix_seconds(unix_seconds);
  event.set_source(source);
  event.set_text(text);
  turn.out->push_back(SaveEvent{job_.id(), std::move(event)});
}

void JobRun::Log(const std::string& text, Turn turn) {
  Log(kSource, text, absl::ToDoubleSeconds(turn.now - absl::UnixEpoch()), turn);
}

}  // namespace headrace
