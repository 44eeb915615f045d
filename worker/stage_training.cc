#include "worker/stage_training.h"

#include <cstdio>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/blob_transfer.h"
#include "common/file.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/weights_slice.h"
#include "worker/snapshot_places.h"
#include "worker/stage_fetch.h"

namespace headrace {
namespace {

// As long as the coordinator itself tries to save a job on a full disk.
constexpr absl::Duration kFullDiskTime = absl::Seconds(60);
constexpr absl::Duration kLookForRoom = absl::Milliseconds(500);

std::string MemoryLine(const StageJob& job, int64_t step, const v1::MemoryBytes& peak,
                       int64_t pinned) {
  const StageBytes plan = StageMemory(job.shape, job.actions);
  const auto kind = [](const char* name, int64_t measured, int64_t predicted) {
    return absl::StrCat(name, " ", measured, " of ", predicted);
  };
  return absl::StrCat(
      "stage ", job.stage(), " after step ", step,
      ": bytes at most in use, of those predicted: ", kind("weights", peak.weights(), plan.weights),
      ", ", kind("gradients", peak.gradients(), plan.gradients), ", ",
      kind("optimizer", peak.optimizer(), plan.optimizer), ", ",
      kind("stash", peak.stash(), plan.stash), ", ",
      kind("workspace", peak.workspace(), plan.workspace), ", ",
      kind("link", peak.link(), plan.link),
      pinned > 0 ? absl::StrCat("; pinned host memory ", pinned) : "");
}

SnapshotSource SourceOf(const StageTraining::Parts& parts) {
  const StageJob& job = *parts.job;
  SnapshotSource source;
  source.job_id = job.job_id;
  source.first_layer = job.shape.layers.front().index;
  source.end_layer = job.shape.layers.back().index + 1;
  source.simulated = job.simulated();
  source.state = OwnState(parts.equipment->model()->parameters(), *parts.equipment->optimizer());
  source.device = parts.equipment->device();
  source.slices = parts.context->slices;
  source.cancellation = parts.cancellation;
  return source;
}

SnapshotReports ReportsOf(const StageTraining::Parts& parts) {
  StageReports* const reports = parts.reports;
  const int stage = parts.job->stage();
  return {.snapshot =
              [reports, metrics = parts.context->metrics](v1::StageSnapshot snapshot) {
                metrics->Snapshot(snapshot);
                v1::StageEvent event;
                *event.mutable_snapshot() = std::move(snapshot);
                if (const absl::Status status = reports->Send(std::move(event)); !status.ok()) {
                  LogWarning(absl::StrCat("cannot report a snapshot: ", status.message()));
                }
              },
          .log =
              [reports, stage](const std::string& line) {
                reports->Log(absl::StrCat("stage ", stage, ": ", line));
              }};
}

}  // namespace

StageTraining::StageTraining(const Parts& parts)
    : parts_(parts),
      job_(*parts.job),
      snapshotter_(SourceOf(parts), PlacesOf(*parts.job, *parts.context, parts.cancellation),
                   ReportsOf(parts)),
      executor_(parts.job, [&] {
        StageParts computing = parts.equipment->Parts(parts.exchange, parts.cancelled);
        computing.wishes = [this](int64_t step) { return Wishes(step); };
        return computing;
      }()) {}

StageTraining::~StageTraining() = default;

Verdict StageTraining::Wishes(int64_t step) {
  SnapshotSchedule::Due due = parts_.schedule->After(step, snapshotter_.progress());
  if (!due.left_out.empty()) parts_.reports->Log(due.left_out);
  return due.verdict;
}

absl::Status StageTraining::RunSteps() {
  int64_t run = 0;
  for (int64_t step = job_.start_step + 1; step <= job_.training.steps(); ++step) {
    if (job_.Skips(step)) continue;
    HEADRACE_ASSIGN_OR_RETURN(StepOutcome outcome, executor_.RunStep(step));
    step_ = step;
    verdict_ = outcome.verdict;
    reason_ = outcome.reason;
    if (verdict_.breaks_off()) return absl::OkStatus();
    *parts_.finished_step = step;
    HEADRACE_RETURN_IF_ERROR(ReportStep(&outcome));
    if (++run == 2) {
      parts_.reports->Log(MemoryLine(job_, step, parts_.equipment->PeakMemory(),
                                     parts_.equipment->device()->pinned_bytes()));
    }
    if (verdict_.checkpoint || verdict_.replicate) snapshotter_.Take(step, verdict_.checkpoint);
    if (verdict_.leave) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status StageTraining::ReportStep(StepOutcome* outcome) {
  const Exchange& exchange = *parts_.exchange;
  WorkerMetrics* const metrics = parts_.context->metrics;
  metrics->StepDone(outcome->report.seconds());
  metrics->MemoryInUse(parts_.equipment->MemoryInUse());
  metrics->LinkBytes(
      exchange.sent_bytes() - std::exchange(sent_bytes_, exchange.sent_bytes()),
      exchange.received_bytes() - std::exchange(received_bytes_, exchange.received_bytes()));
  v1::StageEvent event;
  *event.mutable_step() = std::move(outcome->report);
  *event.mutable_trace() = parts_.reports->DrainTrace();
  return parts_.reports->Send(std::move(event));
}

absl::StatusOr<v1::StageEvent> StageTraining::End() {
  v1::StageEvent event;
  if (verdict_.leave || verdict_.fate == Fate::kRollback) {
    parts_.reports->recorder()->Record("waiting for checkpoints");
  } else if (job_.simulated()) {
    parts_.reports->Log(
        absl::StrCat("stage ", job_.stage(), " was simulated: no weights are kept"));
    event.mutable_finished();
  } else {
    HEADRACE_ASSIGN_OR_RETURN(*event.mutable_finished(), Save());
  }
  const absl::Status kept = snapshotter_.Finish(LongestWait());
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  if (verdict_.fate == Fate::kRollback) {
    event.mutable_rollback()->set_bad_step(step_);
    event.mutable_rollback()->set_reason(reason_);
  } else if (verdict_.leave) {
    event.mutable_left()->set_step(step_);
    if (!kept.ok()) event.mutable_left()->set_reason(std::string(kept.message()));
  } else {
    event.mutable_finished()->set_weights_step(*parts_.finished_step);
    if (verdict_.fate == Fate::kStop) event.mutable_finished()->set_stop_reason(reason_);
    *event.mutable_finished()->mutable_peak_memory() = parts_.equipment->PeakMemory();
  }
  return event;
}

// Each snapshot has a deadline of its own, and there may be some behind one another.
absl::Time StageTraining::LongestWait() const {
  constexpr int kMost = Snapshotter::kMostWaiting + 1;
  const int64_t bytes =
      BytesOf(OwnState(parts_.equipment->model()->parameters(), *parts_.equipment->optimizer()));
  return TransferDeadline(kMost * bytes) + kMost * (absl::Minutes(1) + job_.coordinator_timeout);
}

absl::StatusOr<v1::StageFinished> StageTraining::Save() {
  parts_.reports->recorder()->Record("saving weights");
  StageEquipment* const equipment = parts_.equipment;
  const std::string folder = absl::StrCat(parts_.context->data_dir, "/slices");
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(folder));
  const std::string path = absl::StrCat(folder, "/", job_.job_id, "-", job_.generation, "-stage-",
                                        job_.stage(), ".safetensors");
  const absl::Cleanup remove = [&path] { std::remove(path.c_str()); };
  v1::StageFinished finished;
  v1::WeightsSlice* const weights = finished.mutable_weights();
  HEADRACE_ASSIGN_OR_RETURN(
      *weights, WriteWeightsSlice(path, equipment->model()->parameters(), equipment->device()));
  weights->set_first_layer(job_.shape.layers.front().index);
  weights->set_end_layer(job_.shape.layers.back().index + 1);
  HEADRACE_RETURN_IF_ERROR(CheckNotStopped());
  HEADRACE_RETURN_IF_ERROR(UploadWeights(path, *weights));
  return finished;
}

absl::Status StageTraining::UploadWeights(const std::string& path, const v1::WeightsSlice& slice) {
  const absl::Time give_up = absl::Now() + kFullDiskTime;
  bool told = false;
  while (true) {
    absl::Status status = UploadBlob(
        parts_.context->coordinator, path, slice.sha256(),
        TransferDeadline(slice.size_bytes()) + job_.coordinator_timeout, parts_.cancellation);
    if (!absl::IsResourceExhausted(status) || absl::Now() >= give_up) return status;
    // All steps are done: somebody may make room before they are thrown away.
    if (!told) parts_.reports->Log(absl::StrCat(status.message(), "; trying again"));
    told = true;
    if (!parts_.cancellation->Pause(kLookForRoom)) {
      return absl::CancelledError("the stage was told to stop");
    }
  }
}

absl::Status StageTraining::CheckNotStopped() const {
  if (*parts_.cancelled) return absl::CancelledError("the stage was told to stop");
  return absl::OkStatus();
}

}  // namespace headrace
