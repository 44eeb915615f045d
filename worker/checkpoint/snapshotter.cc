#include "worker/checkpoint/snapshotter.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/fault_point.h"
#include "common/flags.h"
#include "common/status.h"

namespace headrace {

Snapshotter::Snapshotter(SnapshotSource source, SnapshotPlaces places, SnapshotReports reports)
    : source_(std::move(source)),
      places_(std::move(places)),
      reports_(std::move(reports)),
      bytes_(BytesOf(source_.state)) {
  thread_ = std::thread([this] { Run(); });
}

Snapshotter::~Snapshotter() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  source_.cancellation->Cancel();
  thread_.join();
  for (const Snapshot& left : queue_) unlink(left.path.c_str());
}

SnapshotProgress Snapshotter::progress() const {
  absl::MutexLock lock(&mu_);
  SnapshotProgress progress;
  progress.idle = queue_.empty();
  const bool checkpoint_waits =
      std::any_of(queue_.begin(), queue_.end(), [](const Snapshot& s) { return s.checkpoint; });
  const int64_t with_another = static_cast<int64_t>(queue_.size() + 1) * bytes_;
  progress.takes_checkpoint = !checkpoint_waits || with_another <= kSmallBytes;
  progress.copy = last_copy_;
  progress.write = last_write_;
  return progress;
}

void Snapshotter::Take(int64_t step, bool checkpoint) {
  Snapshot snapshot;
  snapshot.step = step;
  snapshot.checkpoint = checkpoint;
  snapshot.begun = absl::Now();
  if (source_.simulated) {
    snapshot.copied = snapshot.begun;
    v1::StageSnapshot report;
    report.set_in_store(checkpoint);
    return Report(snapshot, std::move(report));
  }
  const absl::Status copied = Copy(&snapshot);
  snapshot.copied = absl::Now();
  if (!copied.ok()) {
    ReportFailed(snapshot, copied);
    absl::MutexLock lock(&mu_);
    if (checkpoint) last_checkpoint_ = copied;
    return;
  }
  absl::MutexLock lock(&mu_);
  last_copy_ = snapshot.copied - snapshot.begun;
  queue_.push_back(std::move(snapshot));
}

absl::Status Snapshotter::Copy(Snapshot* snapshot) {
  HEADRACE_RETURN_IF_ERROR(FaultPoint("snapshot"));
  HEADRACE_RETURN_IF_ERROR(CheckRoom(bytes_));
  snapshot->path = source_.slices->Temporary(source_.job_id, snapshot->step);
  HEADRACE_ASSIGN_OR_RETURN(
      snapshot->bytes, WriteState(snapshot->path, source_.state, snapshot->step, source_.device));
  return absl::OkStatus();
}

absl::Status Snapshotter::CheckRoom(int64_t bytes) const {
  if (source_.slices == nullptr) {
    return absl::FailedPreconditionError("this worker keeps no snapshots");
  }
  {
    absl::MutexLock lock(&mu_);
    const int64_t waiting = static_cast<int64_t>(queue_.size());
    if (waiting >= kMostWaiting && (waiting + 1) * bytes > kSmallBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("those after ", waiting, " earlier steps, from step ", queue_.front().step,
                       " on, are still being written"));
    }
  }
  if (source_.slices->HasRoom(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no room on the worker's disk for ", FormatBytes(bytes)));
}

void Snapshotter::Run() {
  Snapshot snapshot;
  while (Next(&snapshot)) {
    absl::Status status;
    if (snapshot.checkpoint || !drops_replicas()) status = Write(snapshot);
    unlink(snapshot.path.c_str());  // unless it was kept, under another name
    if (!status.ok() && !source_.cancellation->cancelled()) ReportFailed(snapshot, status);
    Done(std::move(status));
  }
}

bool Snapshotter::Next(Snapshot* snapshot) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]()
                         ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closed_ || !queue_.empty(); };
  mu_.Await(absl::Condition(&ready));
  if (closed_) return false;
  *snapshot = queue_.front();
  return true;
}

void Snapshotter::Done(absl::Status status) {
  absl::MutexLock lock(&mu_);
  last_write_ = absl::Now() - queue_.front().copied;
  if (status.ok()) last_failure_.clear();
  if (queue_.front().checkpoint) last_checkpoint_ = std::move(status);
  queue_.pop_front();
}

absl::Status Snapshotter::Write(const Snapshot& snapshot) {
  v1::StageSnapshot report;
  v1::WeightsSlice* slice = report.mutable_slice();
  slice->set_first_layer(source_.first_layer);
  slice->set_end_layer(source_.end_layer);
  slice->set_size_bytes(snapshot.bytes);
  HEADRACE_ASSIGN_OR_RETURN(*slice->mutable_sha256(),
                            HashFile(snapshot.path, source_.cancellation));
  v1::HeldSlice held;
  held.set_job_id(source_.job_id);
  held.set_step(snapshot.step);
  held.set_sha256(slice->sha256());
  HEADRACE_RETURN_IF_ERROR(source_.slices->Keep(snapshot.path, held));
  Report(snapshot, report);
  HEADRACE_ASSIGN_OR_RETURN(const std::string path, source_.slices->Find(slice->sha256()));
  return WriteOn(snapshot, &report, path);
}

absl::Status Snapshotter::WriteOn(const Snapshot& snapshot, v1::StageSnapshot* report,
                                  const std::string& path) {
  if (snapshot.checkpoint) {
    HEADRACE_RETURN_IF_ERROR(places_.store(snapshot.step, report->mutable_slice(), path));
    report->set_in_store(true);
  } else if (!places_.neighbour.empty() && !drops_replicas()) {
    HEADRACE_RETURN_IF_ERROR(places_.send(snapshot.step, report->slice(), path));
    report->set_holder(places_.neighbour);
  } else {
    return absl::OkStatus();
  }
  Report(snapshot, *report);
  return absl::OkStatus();
}

void Snapshotter::Report(const Snapshot& snapshot, v1::StageSnapshot report) {
  report.set_step(snapshot.step);
  report.set_copy_s(absl::ToDoubleSeconds(snapshot.copied - snapshot.begun));
  report.set_write_s(absl::ToDoubleSeconds(absl::Now() - snapshot.copied));
  reports_.snapshot(std::move(report));
}

void Snapshotter::ReportFailed(const Snapshot& snapshot, const absl::Status& why) {
  v1::StageSnapshot report;
  report.set_failed(std::string(why.message()));
  Report(snapshot, std::move(report));
  {
    // A disk that is full stays so for many steps.
    absl::MutexLock lock(&mu_);
    if (last_failure_ == why.message()) return;
    last_failure_ = std::string(why.message());
  }
  reports_.log(
      absl::StrCat(snapshot.checkpoint ? "the checkpoint after step " : "the snapshot after step ",
                   snapshot.step, " did not get through: ", why.message()));
}

bool Snapshotter::drops_replicas() const {
  absl::MutexLock lock(&mu_);
  return finishing_;
}

absl::Status Snapshotter::Finish(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  finishing_ = true;
  const auto written = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return queue_.empty(); };
  if (mu_.AwaitWithDeadline(absl::Condition(&written), deadline)) return last_checkpoint_;
  return absl::DeadlineExceededError(absl::StrCat("the checkpoint after step ", queue_.front().step,
                                                  " did not get into the store in time"));
}

}  // namespace headrace
