// What breaks a generation of a job, and how the job goes on.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/job_run.h"
#include "coordinator/job_run_words.h"

namespace headrace {
namespace {

constexpr size_t kMaxCauseBytes = 1024;

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

void JobRun::OnCallEnded(const CallEnded& call, Turn turn) {
  const int64_t k = StageOf(call.worker);
  if (k < 0 || call.generation != job_.generation()) return;
  Stage& stage = stages_[k];
  if (call.kind == CallKind::kControl) {
    OnControlEnded(call.status, turn);
    return;
  }
  if (call.kind != CallKind::kStop) {
    if (call.status.ok() || !(Active() || phase_ == Phase::kCollecting)) return;
    const FaultKind kind = NobodyAnswers(call.status) ? FaultKind::kLost : FaultKind::kOwn;
    // An adopted stage was started before.
    if (adopted_ && kind == FaultKind::kOwn) return;
    AddFault(kind, k, absl::StrCat(CallName(call.kind), ": ", call.status.message()), "", turn);
    return;
  }
  if (phase_ != Phase::kCollecting) return;
  OnTrace(k, call.stop.trace(), turn);
  if (call.status.ok() && stage.flight_record.entries().empty()) {
    stage.flight_record = call.stop.flight_record();
  }
  if (!call.status.ok() && !stage.stopped && !stage.left) {
    // Refused or reset: the process is gone. Too slow: it may only be busy.
    const FaultKind kind = absl::IsUnavailable(call.status) ? FaultKind::kLost : FaultKind::kSilent;
    faults_.push_back(Fault{kind, stage.worker, k, std::string(call.status.message()), ""});
  }
  stage.stopped = true;
  MaybeConclude(turn);
}

void JobRun::OnSeen(const std::string& worker, absl::Time now) {
  const int64_t k = StageOf(worker);
  if (k >= 0) stages_[k].seen = now;
}

void JobRun::OnWorkerLost(const std::string& worker, const std::string& reason, Turn turn) {
  const int64_t k = StageOf(worker);
  if (k < 0) return;
  // What it had to give is in the store.
  const bool gave_all = stages_[k].finished.has_value() || stages_[k].left;
  if (gave_all && (Active() || phase_ == Phase::kCollecting)) {
    stages_[k].stopped = true;
    if (phase_ == Phase::kCollecting) MaybeConclude(turn);
    return;
  }
  if (!Active() && phase_ != Phase::kCollecting) return;
  stages_[k].stopped = true;
  AddFault(FaultKind::kLost, k, reason, "", turn);
}

void JobRun::OnWorkerIdle(const std::string& worker, Turn turn) {
  const int64_t k = StageOf(worker);
  if (k < 0 || !Active() || stages_[k].finished.has_value() || stages_[k].left) return;
  AddFault(FaultKind::kLost, k, "its heartbeats say that it serves no stage", "", turn);
}

void JobRun::OnStoreFailed(const absl::Status& status, Turn turn) {
  if (!Active()) return;
  for_good_ = true;
  CoordinatorFault(absl::StrCat("the coordinator cannot save the job: ", status.message()), turn);
}

void JobRun::OnTime(Turn turn) {
  if (phase_ == Phase::kRunning && turn.now >= control_.retry_at) SendControl(turn);
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
  if (phase_ == Phase::kAdopting) {
    DoNotAdopt(turn);
    return;
  }
  if (!Active()) return;
  // Whose turn it was, as far as can be told from here.
  const auto has_done = [this](const Stage& stage) {
    return phase_ == Phase::kPreparing ? stage.ready : stage.finished.has_value() || stage.left;
  };
  size_t late = 0;
  while (late + 1 < stages_.size() && has_done(stages_[late])) ++late;
  const char* const what = phase_ == Phase::kPreparing ? "was not ready in time"
                           : phase_ == Phase::kSaving  ? "did not finish saving in time"
                           : leave_step_.has_value()   ? "did not leave in time"
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

void JobRun::CoordinatorFault(const std::string& text, Turn turn) {
  faults_.push_back(Fault{FaultKind::kOwn, "", 0, text, ""});
  Collect(turn);
}

void JobRun::Collect(Turn turn) {
  phase_ = Phase::kCollecting;
  deadline_ = turn.now + kCollectTime;
  fault_at_ = turn.now;
  control_ = Control();
  StopAll(!cancel_reason_.empty() ? cancel_reason_
          : faults_.empty()       ? "the job leaves its workers"
          : recovery_.restarts()  ? "its generation has ended"
                                  : "the job has failed",
          turn);
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
  if (rollback_.has_value()) {
    // How long that takes may not decide what is trained.
    if (verifying_.empty()) RollBack(turn);
    return;
  }
  if (all_left_ || faults_.empty()) {
    // The checkpoint that was made by leaving is what the job goes on from.
    if (all_left_ && verifying_.contains(*leave_step_)) return;
    EndLeaving(turn);
    return;
  }
  // Everyone has answered, but nobody has admitted to anything yet: its report may be on the way.
  if (!RootIsKnown(faults_) && turn.now < deadline_) return;
  Judge(turn);
}

void JobRun::Judge(Turn turn) {
  AddWitness();
  std::vector<std::string> workers;
  for (const Stage& stage : stages_) workers.push_back(stage.worker);
  const Root root = FindRoot(faults_, workers, job_.step());
  std::string end = root.verdict;
  if (!for_good_) {
    end = recovery_.Judge(
        {root, bad_slice_ && root.kind == FaultKind::kOwn, got_somewhere_, job_.step()});
  }
  if (end.empty() && bad_slice_ && !job_.from_job().empty() && book_.DurableSteps().empty()) {
    end = absl::StrCat(root.verdict, "; there is no other state of job ", job_.from_job(),
                       " to begin from");
  }
  if (!end.empty()) {
    KeepFlightRecords();
    End(v1::JOB_STATE_FAILED, end, turn);
    return;
  }
  if (leave_.has_value() && leave_->kind == LeaveKind::kPause) {
    Log(root.verdict, turn);
    BecomePaused(turn);
    return;
  }
  const int64_t k = StageOf(root.worker);
  const bool lost = root.kind == FaultKind::kLost && k >= 0;
  not_before_ = turn.now + recovery_.Pause();
  Requeue(root.verdict, lost ? stages_[k].seen : absl::InfinitePast(), turn);
}

void JobRun::KeepFlightRecords() {
  for (size_t k = 0; k < stages_.size(); ++k) {
    v1::FlightRecord record = stages_[k].flight_record;
    record.set_worker(stages_[k].worker);
    record.set_stage(static_cast<int64_t>(k));
    *job_.add_flight_records() = std::move(record);
  }
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

void JobRun::Requeue(const std::string& cause, absl::Time failed_at, Turn turn) {
  if (job_.recoveries_size() >= Recovery::kKept) {
    job_.mutable_recoveries()->DeleteSubrange(0, job_.recoveries_size() - Recovery::kKept + 1);
  }
  v1::Recovery* record = job_.add_recoveries();
  record->set_generation(job_.generation() + 1);
  record->set_cause(cause.substr(0, kMaxCauseBytes));
  record->set_lost_step(job_.step());
  const absl::Time detected = std::max(fault_at_, failed_at);
  record->set_detected_unix_s(UnixSeconds(detected));
  if (failed_at != absl::InfinitePast()) {
    record->set_failed_unix_s(UnixSeconds(failed_at));
  }
  recovering_ = true;
  broke_at_ = turn.now;
  phase_ = Phase::kQueued;
  deadline_ = absl::InfiniteFuture();
  leave_.reset();
  job_.clear_placement();
  SetState(v1::JOB_STATE_RECOVERING, record->cause(), turn);
  Log(absl::StrCat("RECOVERING: ", cause), turn);
}

// ---- After a restart of the coordinator.

void JobRun::Restore(absl::Time deadline, Turn turn) {
  const v1::JobState state = job_.state();
  recovering_ = !job_.recoveries().empty() && job_.recoveries().rbegin()->replayed_unix_s() == 0;
  broke_at_ = fault_at_ = turn.now;
  if (state == v1::JOB_STATE_PAUSED) phase_ = Phase::kPaused;
  if (state == v1::JOB_STATE_PAUSED || state == v1::JOB_STATE_RECOVERING) return;
  const bool trained = state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_SAVING;
  if (trained && !job_.placement().empty() && job_.placement_size() == job_.plan().stage_size()) {
    SetStages(job_.placement());
    for (Stage& stage : stages_) {
      stage.present = false;
      stage.ready = stage.connected = true;
      stage.seen = turn.now;
    }
    BeginGeneration(job_.step(), turn);
    phase_ = Phase::kAdopting;
    deadline_ = deadline;
    adopted_ = true;
    if (job_.message() == kPausing) leave_ = Leaving{LeaveKind::kPause, kPaused};
    Log("the coordinator was restarted: waits for its workers to come back", turn);
    return;
  }
  const std::string cause =
      absl::StrCat("coordinator restarted while the job ran (step ", job_.step(), ")");
  if (recovery_.restarts()) {
    Requeue(cause, absl::InfinitePast(), turn);
  } else {
    Fail(cause, turn);
  }
}

bool JobRun::OnJoined(const WorkerJoined& joined, Turn turn) {
  const v1::WorkerInfo& info = joined.worker;
  const int64_t k = StageOf(info.name());
  if (phase_ != Phase::kAdopting || k < 0) return false;
  Stage& stage = stages_[k];
  if (stage.instance != info.instance()) {
    stage.stopped = true;  // whom there was to stop is gone
    AddFault(FaultKind::kLost, k, "its process was restarted while the coordinator was away", "",
             turn);
    return false;
  }
  stage.seen = turn.now;
  if (!joined.standing.has_value() || joined.standing->job_id() != job_.id() ||
      joined.standing->generation() != job_.generation() || joined.standing->stage() != k) {
    return false;  // it may have finished: its reports, which come again, tell
  }
  stage.present = true;
  Adopted(turn);
  return true;
}

void JobRun::Adopted(Turn turn) {
  if (!std::all_of(stages_.begin(), stages_.end(), [](const Stage& s) { return s.present; })) {
    return;
  }
  const auto finished = std::count_if(stages_.begin(), stages_.end(), [](const Stage& stage) {
    return stage.finished.has_value();
  });
  phase_ = finished > 0 ? Phase::kSaving : Phase::kRunning;
  deadline_ = turn.now + (finished > 0 ? kSaveTime : SilenceTime());
  Log("all its workers are back and still run it: goes on", turn);
  SetState(finished > 0 ? v1::JOB_STATE_SAVING : v1::JOB_STATE_RUNNING, job_.message(), turn);
  if (finished == static_cast<int64_t>(stages_.size())) {
    AllFinished(turn);
    return;
  }
  // The coordinator may have ended between saying that the job runs and telling the stages.
  for (const Stage& each : stages_) {
    if (each.finished.has_value() || each.left) continue;
    turn.out->push_back(StartCall{each.worker, each.instance, job_.id(), job_.generation()});
  }
  if (leave_.has_value() && !leave_step_.has_value()) {
    Ask(false, true, turn);
  } else {
    SendControl(turn);
  }
}

void JobRun::DoNotAdopt(Turn turn) {
  for (size_t k = 0; k < stages_.size(); ++k) {
    Stage& stage = stages_[k];
    if (stage.present) continue;
    stage.stopped = true;
    faults_.push_back(Fault{FaultKind::kLost, stage.worker, static_cast<int64_t>(k),
                            "it has not come back since the coordinator was restarted", ""});
  }
  Collect(turn);
}

}  // namespace headrace
