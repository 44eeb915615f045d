// What stages report about a job.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "coordinator/job_run.h"

namespace headrace {
namespace {

constexpr int kWaitsPerSilence = 10;  // waits without a finished step
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
  deadline_ = turn.now + kWaitsPerSilence * WaitTimeout();
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
  absl::StatusOr<std::optional<v1::StepResult>> merged = merger_->Add(stage, step);
  if (!merged.ok()) {
    OwnFault(stage, std::string(merged.status().message()), turn);
    return;
  }
  if (step.has_tensor_hashes() && options_.hash_tensors()) {
    SaveHashes save{job_.id(), step.tensor_hashes()};
    save.hashes.set_step(step.step());
    save.hashes.set_stage(stage);
    turn.out->push_back(std::move(save));
  }
  if (!merged->has_value()) return;
  job_.set_step((*merged)->step());
  if (phase_ == Phase::kRunning) deadline_ = turn.now + kWaitsPerSilence * WaitTimeout();
  turn.out->push_back(SaveStep{job_.id(), **std::move(merged)});
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
  } else if (job_.step() != job_.spec().training().steps()) {
    Fail(absl::StrCat("the stages finished after step ", job_.step(), " of ",
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
    Fail(absl::StrCat("the weights could not be verified: ", sha256.status().message()), turn);
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
