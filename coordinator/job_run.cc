// Placing a job and ending it.
#include "coordinator/job_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/step_ranges.h"
#include "coordinator/store/job_store.h"

namespace headrace {
namespace {

constexpr char kSource[] = "coordinator";
constexpr double kShortestWait_s = 60;
constexpr double kStepsPerWait = 20;  // predicted steps one wait may take
constexpr int kWaitsPerSilence = 10;  // waits without a finished step

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

std::string WhereFrom(const StateBook::Point& point, int64_t generation) {
  if (point.step > 0) {
    return absl::StrCat("; goes on after step ", point.step, ", from ",
                        point.source == "checkpoint" ? "a checkpoint" : point.source);
  }
  return generation > 1 ? "; begins anew" : "";
}

}  // namespace

JobRun::JobRun(v1::Job job, v1::JobOptions options)
    : job_(std::move(job)),
      options_(std::move(options)),
      book_(job_.spec().checkpoint()),
      recovery_(job_.spec().recovery().restart()) {
  book_.Restore(job_.checkpoints());
  for (const v1::StepRange& range : job_.skipped()) book_.LeaveOut(range);
  for (const v1::StepResult& step : job_.steps()) history_.Add(step);
  for (const v1::StepRange& range : job_.skipped()) history_.LeaveOut(range);
  job_.clear_steps();
}

JobRun::JobRun(std::string job_id, const GenerateSubmitted& submitted)
    : generate_(submitted), book_(v1::CheckpointSpec()), recovery_(v1::SWITCH_OFF) {
  job_.set_id(std::move(job_id));
  job_.set_name(submitted.trained.name());
  job_.set_state(v1::JOB_STATE_QUEUED);
  *job_.mutable_spec() = submitted.trained.spec();
  *job_.mutable_dataset() = submitted.trained.dataset();
}

bool JobRun::Active() const {
  return phase_ == Phase::kAdopting || phase_ == Phase::kPreparing || phase_ == Phase::kRunning ||
         phase_ == Phase::kSaving;
}

bool JobRun::returns() const {
  if (phase_ == Phase::kAdopting) return true;
  if (phase_ != Phase::kCollecting || !cancel_reason_.empty() || for_good_) return false;
  if (leave_.has_value()) return leave_->kind == LeaveKind::kMove;
  return rollback_.has_value() || recovery_.restarts();
}

int64_t JobRun::StageOf(const std::string& worker) const {
  for (size_t k = 0; k < stages_.size(); ++k) {
    if (stages_[k].worker == worker) return static_cast<int64_t>(k);
  }
  return -1;
}

std::vector<v1::Placement> JobRun::Placement() const {
  std::vector<v1::Placement> placement;
  for (const Stage& stage : stages_) {
    placement.emplace_back();
    placement.back().set_worker(stage.worker);
    placement.back().set_instance(stage.instance);
  }
  return placement;
}

int64_t JobRun::PointStep(const StateBook::Living& living) const {
  return book_.Latest(living, std::numeric_limits<int64_t>::max()).step;
}

absl::Duration JobRun::WaitTimeout() const {
  const double asked_s = job_.spec().pipeline().wait_timeout_s();
  if (asked_s > 0) return absl::Seconds(asked_s);
  return absl::Seconds(std::max(kShortestWait_s, kStepsPerWait * job_.plan().step_s()));
}

absl::Duration JobRun::SilenceTime() const { return kWaitsPerSilence * WaitTimeout(); }

void JobRun::Wait(const std::string& message, Turn turn) {
  const std::string whole = recovers() && !job_.recoveries().empty()
                                ? absl::StrCat(job_.recoveries().rbegin()->cause(), "; ", message)
                                : message;
  if (whole == job_.message()) return;
  SetState(job_.state(), whole, turn);
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
    return assignment;
  }
  // Fewer than were asked for, if there are no more.
  if (job_.spec().pipeline().stages() > 0) {
    assignment.mutable_spec()->mutable_pipeline()->set_stages(job_.plan().stages());
  }
  assignment.set_start_step(point_.step);
  for (const v1::WeightsSlice& slice : point_.slices) *assignment.add_weights() = slice;
  *assignment.mutable_skipped() = job_.skipped();
  for (const double loss : history_.RecentLosses(point_.step)) assignment.add_recent_losses(loss);
  return assignment;
}

void JobRun::SetStages(const google::protobuf::RepeatedPtrField<v1::Placement>& placement) {
  stages_.clear();
  for (const v1::Placement& each : placement) {
    Stage& stage = stages_.emplace_back();
    stage.worker = each.worker();
    stage.instance = each.instance();
    served_by_.insert(each.worker());
  }
}

void JobRun::BeginGeneration(int64_t merged_step, Turn turn) {
  merger_ = std::make_unique<StepMerger>(static_cast<int64_t>(stages_.size()), merged_step);
  if (generates()) return;
  stragglers_.emplace(job_.plan());
  last_checkpoint_ = turn.now;
  std::vector<std::string> workers;
  for (const Stage& stage : stages_) workers.push_back(stage.worker);
  book_.BeginGeneration(job_.generation(), job_.plan(), workers, simulates());
}

void JobRun::Start(const v1::Plan& plan, const std::vector<v1::WorkerInfo>& workers,
                   const StateBook::Living& living, Turn turn) {
  ForgetGeneration();
  *job_.mutable_plan() = plan;
  job_.set_generation(job_.generation() + 1);
  if (job_.started_unix_s() == 0) job_.set_started_unix_s(UnixSeconds(turn.now));
  job_.clear_placement();
  for (const v1::WorkerInfo& worker : workers) {
    v1::Placement* placement = job_.add_placement();
    placement->set_worker(worker.name());
    placement->set_instance(worker.instance());
  }
  SetStages(job_.placement());
  if (!generates()) point_ = book_.Latest(living, std::numeric_limits<int64_t>::max());
  BeginGeneration(point_.step, turn);
  if (point_.step > job_.step()) {
    Log(absl::StrCat("not all stages reported steps ", job_.step() + 1, " to ", point_.step), turn);
    job_.set_step(point_.step);
  }
  if (recovering_) {
    v1::Recovery* record = &*job_.mutable_recoveries()->rbegin();
    record->set_generation(job_.generation());
    record->set_planned_unix_s(UnixSeconds(turn.now));
    record->set_from_step(point_.step);
    record->set_source(point_.source);
  }
  phase_ = Phase::kPreparing;
  deadline_ = turn.now + kPrepareTime;
  SetState(v1::JOB_STATE_PREPARING, "", turn);
  Log(absl::StrCat("placed on ", Names(workers), " (generation ", job_.generation(), ")",
                   HowCosted(plan), WhereFrom(point_, job_.generation())),
      turn);
  for (size_t k = 0; k < workers.size(); ++k) {
    turn.out->push_back(AssignCall{workers[k].name(), workers[k].instance(),
                                   Assignment(static_cast<int64_t>(k), workers)});
  }
}

void JobRun::ForgetGeneration() {
  job_.clear_links();
  job_.clear_peak_memory();
  job_.clear_weights();
  job_.clear_weights_step();
  job_.clear_weights_sha256();
  job_.clear_flight_records();
  point_ = StateBook::Point();
  adopted_ = got_somewhere_ = all_left_ = bad_slice_ = for_good_ = false;
  stop_reason_.clear();
  control_ = Control();
  leave_.reset();
  rollback_.reset();
  leave_step_.reset();
  faults_.clear();
}

void JobRun::Fail(const std::string& message, Turn turn) {
  End(v1::JOB_STATE_FAILED, message, turn);
}

absl::Status JobRun::Cancel(const std::string& reason, Turn turn) {
  if (phase_ == Phase::kQueued || phase_ == Phase::kPaused) {
    End(v1::JOB_STATE_CANCELLED, reason, turn);
    return absl::OkStatus();
  }
  if (phase_ == Phase::kCollecting && !cancel_reason_.empty()) return absl::OkStatus();
  const bool fails = phase_ == Phase::kCollecting && !returns() && !leave_.has_value();
  if (ended() || fails) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_.id(), ended() ? " has ended" : " is failing already"));
  }
  cancel_reason_ = reason;
  Log(reason, turn);
  if (phase_ == Phase::kHashing) {
    // No worker serves this job any more.
    End(v1::JOB_STATE_CANCELLED, reason, turn);
  } else if (phase_ == Phase::kCollecting) {
    MaybeConclude(turn);
  } else {
    Collect(turn);
  }
  return absl::OkStatus();
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
  job_.clear_placement();
  job_.set_ended_unix_s(UnixSeconds(turn.now));
  std::string line = ShortName(state);
  if (!message.empty()) absl::StrAppend(&line, ": ", message);
  Log(line, turn);
  SetState(state, message, turn);
  // Others may be resumed.
  if (state != v1::JOB_STATE_DONE || !has_slices_) return;
  turn.out->push_back(DropSlices{
      job_.id(), std::numeric_limits<int64_t>::max(), {served_by_.begin(), served_by_.end()}});
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
  Log(kSource, text, UnixSeconds(turn.now), turn);
}

}  // namespace headrace
