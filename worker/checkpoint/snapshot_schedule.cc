#include "worker/checkpoint/snapshot_schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

constexpr double kDefaultEveryMinutes = 10;
constexpr absl::Duration kReplicateEvery = absl::Seconds(10);
// So many times what copying took, and what hashing and sending did: that takes a processor, too.
constexpr int64_t kCopyPause = 50, kWritePause = 20;

absl::Duration EveryOf(const v1::CheckpointSpec& spec) {
  const double minutes = spec.has_every_minutes() ? spec.every_minutes() : kDefaultEveryMinutes;
  return minutes > 0 ? absl::Minutes(minutes) : absl::InfiniteDuration();
}

bool IsMultiple(int64_t step, int64_t of) { return of > 0 && step % of == 0; }

}  // namespace

SnapshotSchedule::SnapshotSchedule(const v1::CheckpointSpec& spec, int64_t steps,
                                   const Clock* clock)
    : spec_(spec),
      steps_(steps),
      clock_(clock),
      every_(EveryOf(spec)),
      last_checkpoint_(clock->Now()),
      last_snapshot_(last_checkpoint_) {}

void SnapshotSchedule::Ask(bool checkpoint, bool leave) {
  absl::MutexLock lock(&mu_);
  checkpoint_asked_ |= checkpoint || leave;
  leave_asked_ |= leave;
}

SnapshotSchedule::Due SnapshotSchedule::After(int64_t step, const SnapshotProgress& progress) {
  absl::MutexLock lock(&mu_);
  const absl::Time now = clock_->Now();
  Due due;
  // After the last step they end anyhow.
  due.verdict.leave = leave_asked_ && step < steps_;
  const bool by_step = IsMultiple(step, spec_.every_steps());
  const bool wanted = by_step || checkpoint_asked_ || now - last_checkpoint_ >= every_;
  if (due.verdict.leave || (wanted && progress.takes_checkpoint)) {
    due.verdict.checkpoint = true;
    checkpoint_asked_ = leave_asked_ = false;
    last_checkpoint_ = last_snapshot_ = now;
    return due;
  }
  if (by_step) {
    due.left_out = absl::StrCat("the checkpoint after step ", step,
                                " is left out: the one before is still being written");
  }
  if (!ReplicateIsDue(step, progress, now)) return due;
  due.verdict.replicate = true;
  last_snapshot_ = now;
  return due;
}

bool SnapshotSchedule::ReplicateIsDue(int64_t step, const SnapshotProgress& progress,
                                      absl::Time now) const {
  if (spec_.replicate() == v1::REPLICATION_OFF || !progress.idle || step >= steps_) return false;
  if (spec_.replicate_every() > 0) return IsMultiple(step, spec_.replicate_every());
  return now - last_snapshot_ >=
         std::max({kReplicateEvery, kCopyPause * progress.copy, kWritePause * progress.write});
}

}  // namespace headrace
