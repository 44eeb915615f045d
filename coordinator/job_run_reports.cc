// What stages report about a job.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "coordinator/job_run.h"
#include "coordinator/step_ranges.h"

namespace headrace {
namespace {

constexpr size_t kMaxLineBytes = 4096;
constexpr int kMaxRecordEntries = 4096;
constexpr int kMaxLinksPerStage = 3;  // to both neighbours, and between both ends

void Trim(v1::FlightRecord* record) {
  if (record->entries_size() <= kMaxRecordEntries) return;
  record->mutable_entries()->DeleteSubrange(0, record->entries_size() - kMaxRecordEntries);
}

}  // namespace

void JobRun::OnReport(const std::string& worker, const v1::StageEvent& event, Turn turn) {
  const int64_t k = StageOf(worker);
  if (k < 0 || event.stage() != k || event.generation() != job_.generation()) return;
  if (event.has_trace()) OnTrace(k, event.trace(), turn);
  if (event.has_failed()) {
    OnFailed(k, event.failed(), turn);
    return;
  }
  if (event.event_case() == v1::StageEvent::kLog) {
    Log(worker, event.log().substr(0, kMaxLineBytes), event.unix_seconds(), turn);
    return;
  }
  // Some come late, when the stages have been told to stop: all the better to go on from.
  if (event.event_case() == v1::StageEvent::kSnapshot) {
    OnSnapshot(k, event.snapshot(), turn);
    return;
  }
  if (!Active()) return;
  switch (event.event_case()) {
    case v1::StageEvent::kReady:
      OnReady(&stages_[k], turn);
      break;
    case v1::StageEvent::kConnected:
      OnConnected(k, event.connected(), turn);
      break;
    case v1::StageEvent::kStep:
      OnStep(k, event.step(), turn);
      break;
    case v1::StageEvent::kFinished:
      OnFinished(k, event.finished(), turn);
      break;
    case v1::StageEvent::kLeft:
      OnLeft(k, event.left(), turn);
      break;
    case v1::StageEvent::kRollback:
      OnRollback(k, event.rollback(), turn);
      break;
    case v1::StageEvent::kToken:
      OnToken(k, event.token(), turn);
      break;
    default:
      break;
  }
}

void JobRun::OnReady(Stage* stage, Turn turn) {
  if (phase_ != Phase::kPreparing || stage->ready) return;
  stage->ready = true;
  if (!std::all_of(stages_.begin(), stages_.end(), [](const Stage& s) { return s.ready; })) return;
  phase_ = Phase::kRunning;
  deadline_ = turn.now + SilenceTime();
  if (recovering_) {
    job_.mutable_recoveries()->rbegin()->set_loaded_unix_s(UnixSeconds(turn.now));
  }
  SetState(v1::JOB_STATE_RUNNING, "", turn);
  Log("all stages are ready: running", turn);
  for (const Stage& each : stages_) {
    turn.out->push_back(StartCall{each.worker, each.instance, job_.id(), job_.generation()});
  }
}

void JobRun::OnConnected(int64_t stage, const v1::StageConnected& connected, Turn turn) {
  if (phase_ == Phase::kPreparing || stages_[stage].connected) return;
  stages_[stage].connected = true;
  for (int i = 0; i < std::min(connected.links_size(), kMaxLinksPerStage); ++i) {
    *job_.add_links() = connected.links(i);
  }
  if (std::all_of(stages_.begin(), stages_.end(), [](const Stage& s) { return s.connected; })) {
    Save(turn);
  }
}

void JobRun::OnStep(int64_t stage, const v1::StageStep& step, Turn turn) {
  if (phase_ == Phase::kPreparing || generates()) return;
  const int64_t before = merger_->merged();
  absl::StatusOr<std::optional<v1::StepResult>> merged = merger_->Add(stage, step);
  if (!merged.ok()) {
    OwnFault(stage, std::string(merged.status().message()), turn);
    return;
  }
  if (step.has_tensor_hashes() && options_.hash_tensors() && step.step() > job_.step()) {
    SaveHashes save{job_.id(), step.tensor_hashes()};
    save.hashes.set_step(step.step());
    save.hashes.set_stage(stage);
    turn.out->push_back(std::move(save));
  }
  if (!merged->has_value()) return;
  const int64_t next = NextToDo(job_.skipped(), before);
  if (next < (*merged)->step()) {
    Log(absl::StrCat("not all stages reported steps ", next, " to ", (*merged)->step() - 1), turn);
  }
  OnWholeStep(**std::move(merged), turn);
}

void JobRun::OnWholeStep(v1::StepResult step, Turn turn) {
  if (phase_ == Phase::kRunning && !leave_.has_value() && !rollback_.has_value()) {
    deadline_ = turn.now + SilenceTime();
  }
  if (std::optional<std::string> lags = stragglers_->Add(step)) Log(*lags, turn);
  if (step.step() <= job_.step()) {  // again
    if (std::optional<std::string> differs = history_.Differs(step)) Log(*differs, turn);
    return;
  }
  job_.set_step(step.step());
  got_somewhere_ = true;
  history_.Add(step);
  const std::string skipped = step.skipped();
  skipped_in_a_row_ = skipped.empty() ? 0 : skipped_in_a_row_ + 1;
  if (!skipped.empty()) {
    Log(absl::StrCat("step ", step.step(), " is not applied: ", skipped), turn);
  }
  turn.out->push_back(SaveStep{job_.id(), std::move(step)});
  if (recovering_ && phase_ != Phase::kAdopting) {
    recovering_ = false;
    job_.mutable_recoveries()->rbegin()->set_replayed_unix_s(UnixSeconds(turn.now));
    Save(turn);
  }
  if (skipped_in_a_row_ < kMostSkipped || !Active()) return;
  for_good_ = true;
  CoordinatorFault(
      absl::StrCat(kMostSkipped, " steps in a row were not applied; the last: ", skipped), turn);
}

absl::Status JobRun::CheckFinished(int64_t stage, const v1::StageFinished& finished) const {
  if (simulates()) {
    if (!finished.has_weights()) return absl::OkStatus();
    return absl::InvalidArgumentError("it sends weights, but the job is simulated");
  }
  const v1::WeightsSlice& slice = finished.weights();
  const v1::StagePlan& plan = job_.plan().stage(static_cast<int>(stage));
  if (slice.first_layer() != plan.first_layer() || slice.end_layer() != plan.end_layer()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its weights are of layers ", slice.first_layer(), " to ", slice.end_layer(),
                     ", its plan says ", plan.first_layer(), " to ", plan.end_layer()));
  }
  if (!IsSha256(slice.sha256()) || slice.size_bytes() <= 0) {
    return absl::InvalidArgumentError("its weights slice has no hash or no size");
  }
  return absl::OkStatus();
}

void JobRun::OnFinished(int64_t k, const v1::StageFinished& finished, Turn turn) {
  if (phase_ == Phase::kPreparing) {
    OwnFault(k, "it says that it has finished, but it has not been started", turn);
    return;
  }
  if (stages_[k].finished.has_value()) return;
  if (!generates()) {
    if (absl::Status status = CheckFinished(k, finished); !status.ok()) {
      OwnFault(k, std::string(status.message()), turn);
      return;
    }
    if (phase_ == Phase::kRunning) {
      phase_ = Phase::kSaving;
      deadline_ = turn.now + kSaveTime;
      SetState(v1::JOB_STATE_SAVING, "", turn);
    }
  }
  stages_[k].finished = finished;
  stages_[k].present = true;
  if (phase_ == Phase::kAdopting) {
    Adopted(turn);
    return;
  }
  const bool all = std::all_of(stages_.begin(), stages_.end(),
                               [](const Stage& stage) { return stage.finished.has_value(); });
  if (all) AllFinished(turn);
}

void JobRun::AllFinished(Turn turn) {
  StopAll("the job has finished", turn);
  if (generates()) {
    End(v1::JOB_STATE_DONE, "", turn);
    return;
  }
  phase_ = Phase::kHashing;
  deadline_ = absl::InfiniteFuture();
  HashWeights hash{job_.id(), job_.generation(), {}};
  bool same_step = true;
  for (const Stage& stage : stages_) {
    *job_.add_peak_memory() = stage.finished->peak_memory();
    if (!simulates()) *job_.add_weights() = stage.finished->weights();
    hash.slices.push_back(stage.finished->weights());
    if (stop_reason_.empty()) stop_reason_ = stage.finished->stop_reason();
    same_step &= stage.finished->weights_step() == stages_[0].finished->weights_step();
  }
  job_.set_weights_step(stages_[0].finished->weights_step());
  if (!same_step) {
    job_.clear_weights();
    job_.clear_weights_step();
    Fail("the stages saved weights of different steps", turn);
    return;
  }
  if (simulates()) {
    job_.clear_weights_step();
    EndAfterSteps(turn);
    return;
  }
  turn.out->push_back(std::move(hash));
}

void JobRun::EndAfterSteps(Turn turn) {
  if (!stop_reason_.empty()) {
    Fail(stop_reason_, turn);
  } else if (merger_->merged() < LastToDo(job_.skipped(), job_.spec().training().steps())) {
    Fail(absl::StrCat("the stages finished after step ", merger_->merged(), " of ",
                      job_.spec().training().steps()),
         turn);
  } else {
    End(v1::JOB_STATE_DONE,
        simulates() ? "simulated: nothing was trained, no weights are kept" : "", turn);
  }
}

void JobRun::OnWeightsHashed(const absl::StatusOr<std::string>& sha256, Turn turn) {
  if (phase_ != Phase::kHashing) return;
  if (!sha256.ok()) {
    job_.clear_weights();
    job_.clear_weights_step();
    const std::string text =
        absl::StrCat("the weights could not be verified: ", sha256.status().message());
    if (!recovery_.restarts()) {
      Fail(text, turn);
      return;
    }
    faults_.push_back(Fault{FaultKind::kOwn, "", 0, text, ""});
    fault_at_ = turn.now;
    Judge(turn);
    return;
  }
  job_.set_weights_sha256(*sha256);
  EndAfterSteps(turn);
}

void JobRun::OnFailed(int64_t k, const v1::StageFailed& failed, Turn turn) {
  if (!Active() && phase_ != Phase::kCollecting) return;
  if (failed.has_flight_record()) {
    stages_[k].flight_record = failed.flight_record();
    Trim(&stages_[k].flight_record);
  }
  if (!failed.bad_slice().empty()) OnBadSlice(failed.bad_slice(), failed.reason(), turn);
  const FaultKind kind = failed.blamed_worker().empty() ? FaultKind::kOwn : FaultKind::kAccusation;
  AddFault(kind, k, failed.reason().substr(0, kMaxLineBytes), failed.blamed_worker(), turn);
}

void JobRun::OnToken(int64_t stage, int64_t token, Turn turn) {
  if (!generates() || phase_ == Phase::kPreparing) return;
  if (stage + 1 != static_cast<int64_t>(stages_.size())) return;
  if (++tokens_ > generate_->generate.max_tokens()) {
    OwnFault(stage, "it sends more tokens than were asked for", turn);
    return;
  }
  turn.out->push_back(EmitToken{generate_->request, token});
}

void JobRun::OnTrace(int64_t stage, const v1::StageTrace& trace, Turn turn) {
  if (generates() || trace.begin_ns().empty()) return;
  turn.out->push_back(KeepTrace{job_.id(), stage, trace});
}

}  // namespace headrace
