// A job's state: checkpoints and snapshots, and what is done at one: leaving, pausing, rolling
// back.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/flags.h"
#include "coordinator/job_run.h"
#include "coordinator/job_run_words.h"
#include "coordinator/step_ranges.h"

namespace headrace {
namespace {

constexpr double kDefaultMinutes = 10;
constexpr size_t kMaxWhyBytes = 512;
constexpr size_t kMaxHolders = 1000;

// Replaces the one of the same step.
void Insert(const v1::Checkpoint& checkpoint,
            google::protobuf::RepeatedPtrField<v1::Checkpoint>* checkpoints) {
  std::vector<v1::Checkpoint> all(checkpoints->begin(), checkpoints->end());
  std::erase_if(all, [&](const v1::Checkpoint& each) { return each.step() == checkpoint.step(); });
  const auto at = std::find_if(all.begin(), all.end(), [&](const v1::Checkpoint& each) {
    return each.step() > checkpoint.step();
  });
  all.insert(at, checkpoint);
  checkpoints->Clear();
  for (v1::Checkpoint& each : all) *checkpoints->Add() = std::move(each);
}

}  // namespace

// ---- Snapshots and checkpoints.

void JobRun::OnSnapshot(int64_t k, const v1::StageSnapshot& snapshot, Turn turn) {
  if (generates()) return;
  if (snapshot.failed().empty()) {
    if (absl::Status status = book_.Check(k, snapshot); !status.ok()) {
      if (Active()) OwnFault(k, std::string(status.message()), turn);
      return;
    }
  }
  has_slices_ |= snapshot.has_slice();
  if (!snapshot.holder().empty() && served_by_.size() < kMaxHolders) {
    served_by_.insert(snapshot.holder());
  }
  std::optional<v1::Checkpoint> whole = book_.Add(k, stages_[k].worker, snapshot, turn.now);
  if (whole.has_value()) {
    verifying_.insert(whole->step());
    turn.out->push_back(VerifyCheckpoint{job_.id(), job_.generation(), *std::move(whole),
                                         job_.spec().checkpoint().store()});
  }
  DropOldSlices(turn);
}

void JobRun::OnCheckpointVerified(const CheckpointVerified& verified, Turn turn) {
  const v1::Checkpoint& checkpoint = verified.checkpoint;
  verifying_.erase(checkpoint.step());
  if (ended()) return;
  if (!verified.status.ok()) {
    Log(absl::StrCat("the checkpoint of step ", checkpoint.step(),
                     " is no good: ", verified.status.message()),
        turn);
  } else if (!Contains(job_.skipped(), checkpoint.step())) {
    book_.Verified(checkpoint);
    Insert(checkpoint, job_.mutable_checkpoints());
    turn.out->push_back(SaveCheckpoint{job_.id(), checkpoint});
    last_checkpoint_ = turn.now;
    Log(absl::StrCat("checkpoint of step ", checkpoint.step(),
                     simulates() ? "" : absl::StrCat(": ", FormatBytes(checkpoint.size_bytes()))),
        turn);
    DropSuperfluous(turn);
    DropOldSlices(turn);
  }
  if (phase_ == Phase::kCollecting) MaybeConclude(turn);
}

void JobRun::DropSuperfluous(Turn turn) {
  const std::vector<int64_t> steps = book_.Superfluous();
  if (steps.empty()) return;
  for (const int64_t step : steps) book_.Dropped(step);
  std::vector<v1::Checkpoint> kept(job_.checkpoints().begin(), job_.checkpoints().end());
  std::erase_if(kept, [&](const v1::Checkpoint& each) {
    return std::find(steps.begin(), steps.end(), each.step()) != steps.end();
  });
  job_.clear_checkpoints();
  for (v1::Checkpoint& each : kept) *job_.add_checkpoints() = std::move(each);
  turn.out->push_back(DropCheckpoints{job_.id(), steps});
}

void JobRun::DropOldSlices(Turn turn) {
  const int64_t keep_from = book_.KeepFrom();
  if (!has_slices_ || keep_from <= dropped_before_) return;
  dropped_before_ = keep_from;
  turn.out->push_back(DropSlices{job_.id(), keep_from, {served_by_.begin(), served_by_.end()}});
}

void JobRun::OnBadSlice(const std::string& sha256, const std::string& why, Turn turn) {
  const bool ours =
      std::any_of(point_.slices.begin(), point_.slices.end(),
                  [&](const v1::WeightsSlice& slice) { return slice.sha256() == sha256; });
  if (!ours) return;
  bad_slice_ = true;
  for (const v1::Checkpoint& damaged : book_.Damaged(sha256, why.substr(0, kMaxWhyBytes))) {
    Insert(damaged, job_.mutable_checkpoints());
    turn.out->push_back(SaveCheckpoint{job_.id(), damaged});
    Log(absl::StrCat("the checkpoint of step ", damaged.step(), " is damaged: ", damaged.damaged()),
        turn);
  }
}

void JobRun::OnHeld(const std::string& worker, const std::vector<v1::HeldSlice>& held) {
  book_.Forget(worker);
  for (const v1::HeldSlice& slice : held) {
    if (slice.job_id() != job_.id()) continue;
    has_slices_ = true;
    if (served_by_.size() < kMaxHolders) served_by_.insert(worker);
    book_.Held(worker, slice);
  }
}

// ---- What stage 0 is asked for.

void JobRun::Ask(bool checkpoint, bool leave, Turn turn) {
  // Who leaves does no more steps while its checkpoint is on its way.
  if (leave && phase_ == Phase::kRunning) deadline_ = std::max(deadline_, turn.now + kSaveTime);
  control_.checkpoint |= checkpoint;
  control_.leave |= leave;
  control_.retry_at = absl::InfinitePast();
  SendControl(turn);
}

void JobRun::SendControl(Turn turn) {
  const bool under_way = control_.sent_checkpoint || control_.sent_leave;
  if (phase_ != Phase::kRunning || under_way || !(control_.checkpoint || control_.leave)) return;
  control_.sent_checkpoint = control_.checkpoint;
  control_.sent_leave = control_.leave;
  turn.out->push_back(ControlCall{stages_[0].worker, stages_[0].instance, job_.id(),
                                  job_.generation(), control_.checkpoint, control_.leave});
}

void JobRun::OnControlEnded(const absl::Status& status, Turn turn) {
  if (phase_ != Phase::kRunning) return;
  if (status.ok()) {
    control_.checkpoint &= !control_.sent_checkpoint;
    control_.leave &= !control_.sent_leave;
  } else {
    Log(absl::StrCat("ControlStage: ", status.message(), "; asks again"), turn);
    control_.retry_at = turn.now + kControlEvery;
  }
  control_.sent_checkpoint = control_.sent_leave = false;
  if (status.ok()) SendControl(turn);
}

absl::Status JobRun::Checkpoint(Turn turn) {
  if (phase_ != Phase::kRunning && phase_ != Phase::kAdopting) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_.id(), " is ", ShortName(job_.state()),
                     ": only a running job can make a checkpoint"));
  }
  Log("a checkpoint is asked for", turn);
  Ask(true, false, turn);
  return absl::OkStatus();
}

// ---- Leaving.

void JobRun::Leave(const std::string& why, Turn turn) {
  const bool trains = phase_ == Phase::kRunning || phase_ == Phase::kAdopting;
  if (generates() || leave_.has_value() || !(trains || phase_ == Phase::kPreparing)) return;
  leave_ = Leaving{LeaveKind::kMove, why};
  Log(absl::StrCat("leaves its workers",
                   trains ? " at a checkpoint after the step at hand: " : ": ", why),
      turn);
  if (trains) {
    Ask(false, true, turn);
  } else {
    Collect(turn);  // it has done nothing yet
  }
}

bool JobRun::CheckpointDue(absl::Time now) const {
  const v1::CheckpointSpec& spec = job_.spec().checkpoint();
  if (spec.every_steps() > 0 && (job_.step() + 1) % spec.every_steps() == 0) return true;
  const double minutes = spec.has_every_minutes() ? spec.every_minutes() : kDefaultMinutes;
  return minutes > 0 && now - last_checkpoint_ >= absl::Minutes(minutes);
}

absl::Status JobRun::Pause(Turn turn) {
  const auto refuse = [&](const char* why) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job_.id(), why));
  };
  switch (phase_) {
    case Phase::kPaused:
      return absl::OkStatus();
    case Phase::kQueued:
      BecomePaused(turn);
      return absl::OkStatus();
    case Phase::kAdopting:
    case Phase::kRunning:
      if (leave_.has_value() && leave_->kind == LeaveKind::kPause) return absl::OkStatus();
      leave_ = Leaving{LeaveKind::kPause, kPaused};
      Log(kPausing, turn);
      SetState(job_.state(), kPausing, turn);
      Ask(false, true, turn);
      return absl::OkStatus();
    case Phase::kPreparing:
      leave_ = Leaving{LeaveKind::kPause, kPaused};
      Log(kPaused, turn);
      Collect(turn);
      return absl::OkStatus();
    case Phase::kCollecting:
      if (!cancel_reason_.empty() || (!returns() && !leave_.has_value())) {
        return refuse(" is ending already");
      }
      leave_ = Leaving{LeaveKind::kPause, kPaused};
      return absl::OkStatus();
    case Phase::kSaving:
    case Phase::kHashing:
      return refuse(" has done its last step and is being saved");
    case Phase::kEnded:
      break;
  }
  return refuse(" has ended");
}

absl::Status JobRun::Resume(Turn turn) {
  if (phase_ == Phase::kPaused) {
    phase_ = Phase::kQueued;
    recovering_ = false;
    recovery_ = Recovery(job_.spec().recovery().restart());
    not_before_ = absl::InfinitePast();
    Log("resumed", turn);
    SetState(v1::JOB_STATE_QUEUED, "", turn);
    return absl::OkStatus();
  }
  if (leave_.has_value() && leave_->kind == LeaveKind::kPause && cancel_reason_.empty()) {
    leave_ = Leaving{LeaveKind::kMove, "resumed before it was paused"};
    SetState(job_.state(), "", turn);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job_.id(), " is ", ShortName(job_.state()),
                   ": only a paused, failed or cancelled job can be resumed"));
}

void JobRun::OnLeft(int64_t k, const v1::StageLeft& left, Turn turn) {
  if (stages_[k].left) return;
  const bool possible = phase_ == Phase::kRunning || phase_ == Phase::kAdopting;
  if (!possible || left.step() < point_.step || left.step() > job_.spec().training().steps() ||
      left.step() != leave_step_.value_or(left.step())) {
    OwnFault(k,
             absl::StrCat("it says that it has left after step ", left.step(), ", which cannot be"),
             turn);
    return;
  }
  // A coordinator before this one may have asked.
  if (!leave_.has_value()) leave_ = Leaving{LeaveKind::kMove, "asked to before"};
  if (!left.reason().empty()) {
    Log(absl::StrCat("the checkpoint of step ", left.step(), " is not whole: worker ",
                     stages_[k].worker, ": ", left.reason().substr(0, kMaxWhyBytes)),
        turn);
  }
  if (!leave_step_.has_value()) deadline_ = turn.now + kSaveTime;
  leave_step_ = left.step();
  StageGone(k, turn);
}

void JobRun::StageGone(int64_t k, Turn turn) {
  stages_[k].left = stages_[k].present = true;
  if (phase_ == Phase::kAdopting) Adopted(turn);
  if (!std::all_of(stages_.begin(), stages_.end(), [](const Stage& s) { return s.left; })) return;
  all_left_ = true;
  Collect(turn);
}

void JobRun::EndLeaving(Turn turn) {
  // Without a reason: its preparation was broken off by nobody's fault.
  const Leaving leave = leave_.value_or(Leaving());
  if (leave.kind == LeaveKind::kPause) {
    BecomePaused(turn);
  } else {
    Requeue(leave.why, absl::InfinitePast(), turn);
  }
}

void JobRun::BecomePaused(Turn turn) {
  phase_ = Phase::kPaused;
  deadline_ = absl::InfiniteFuture();
  leave_.reset();
  job_.clear_placement();
  job_.clear_links();
  const std::vector<int64_t> durable = book_.DurableSteps();
  Log(durable.empty() ? "PAUSED: without a checkpoint, it will begin anew"
                      : absl::StrCat("PAUSED: will go on after step ", durable.back()),
      turn);
  SetState(v1::JOB_STATE_PAUSED, kPaused, turn);
}

// ---- Rolling back.

void JobRun::OnRollback(int64_t k, const v1::StageRollback& rollback, Turn turn) {
  if (stages_[k].left) return;
  const int64_t step = rollback.bad_step();
  const bool possible = phase_ == Phase::kRunning || phase_ == Phase::kAdopting;
  if (!possible || step <= point_.step || step > job_.spec().training().steps() ||
      (rollback_.has_value() && rollback_->bad_step() != step)) {
    OwnFault(k, absl::StrCat("it says that it rolls back step ", step, ", which cannot be"), turn);
    return;
  }
  if (!rollback_.has_value()) {
    rollback_ = rollback;
    deadline_ = turn.now + kSaveTime;  // they wait for their checkpoints of earlier steps
  }
  StageGone(k, turn);
}

void JobRun::RollBack(Turn turn) {
  const int64_t bad = rollback_->bad_step();
  const StateBook::Point point = book_.Latest({}, bad - 1);
  v1::StepRange range;
  range.set_first(point.step + 1);
  range.set_last(bad);
  AddRange(range.first(), range.last(), job_.mutable_skipped());
  book_.LeaveOut(range);
  history_.LeaveOut(range);
  const std::string reason = rollback_->reason().substr(0, kMaxWhyBytes);
  const std::string cause = absl::StrCat(reason, "; rolled back to step ", point.step,
                                         ", the steps up to ", bad, " are left out");
  rollback_.reset();
  rollbacks_to_it_ = rolled_back_to_ == point.step ? rollbacks_to_it_ + 1 : 1;
  rolled_back_to_ = point.step;
  if (rollbacks_to_it_ > kMostRollbacks) {
    KeepFlightRecords();
    Fail(absl::StrCat(reason, "; ", kMostRollbacks, " rollbacks in a row to step ", point.step,
                      " led nowhere"),
         turn);
    return;
  }
  if (leave_.has_value() && leave_->kind == LeaveKind::kPause) {
    Log(cause, turn);
    BecomePaused(turn);
  } else {
    Requeue(cause, absl::InfinitePast(), turn);
  }
}

}  // namespace headrace
