#include "coordinator/metrics.h"

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"
#include "coordinator/job_messages.h"
#include "coordinator/store/job_store.h"

namespace headrace {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;

// One without labels.
prometheus::Counter& AddCounter(prometheus::Registry* registry, const std::string& name,
                                const std::string& help) {
  return BuildCounter().Name(name).Help(help).Register(*registry).Add({});
}

}  // namespace

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      jobs_(BuildGauge()
                .Name("headrace_jobs")
                .Help("Jobs by state; ended ones since this coordinator started")
                .Register(*registry_)),
      workers_(BuildGauge()
                   .Name("headrace_workers_alive")
                   .Help("Workers that hold a lease")
                   .Register(*registry_)),
      blob_bytes_(BuildGauge()
                      .Name("headrace_blob_bytes")
                      .Help("Bytes of all whole blobs in the store")
                      .Register(*registry_)),
      steps_(BuildCounter()
                 .Name("headrace_steps_total")
                 .Help("Training steps finished")
                 .Register(*registry_)),
      loss_(BuildGauge()
                .Name("headrace_loss")
                .Help("Loss of a job's last step, nats per token")
                .Register(*registry_)),
      step_seconds_(BuildGauge()
                        .Name("headrace_step_seconds")
                        .Help("Time of a job's last step")
                        .Register(*registry_)),
      bubble_(BuildGauge()
                  .Name("headrace_bubble_ratio")
                  .Help("Idle share of a job's last step, mean over its stages")
                  .Register(*registry_)),
      checkpoint_time_(BuildGauge()
                           .Name("headrace_last_checkpoint_timestamp_seconds")
                           .Help("When a job's last checkpoint was whole")
                           .Register(*registry_)),
      checkpoints_(AddCounter(registry_.get(), "headrace_checkpoints_total",
                              "Checkpoints that became durable")),
      checkpoint_bytes_(AddCounter(registry_.get(), "headrace_checkpoint_bytes_total",
                                   "Bytes of the checkpoints that became durable")),
      snapshot_copy_seconds_(AddCounter(registry_.get(), "headrace_snapshot_copy_seconds_total",
                                        "Time that stages stood still to copy their state")),
      snapshot_write_seconds_(
          AddCounter(registry_.get(), "headrace_snapshot_write_seconds_total",
                     "Time from the copy until it was in the store or with a neighbour")),
      snapshot_failures_(AddCounter(registry_.get(), "headrace_snapshot_failures_total",
                                    "Snapshots of a stage that did not get where they should")),
      recoveries_(AddCounter(registry_.get(), "headrace_recoveries_total",
                             "Times that a job went on after a fault")),
      recovery_seconds_(AddCounter(registry_.get(), "headrace_recovery_seconds_total",
                                   "Time from a fault until all stages were loaded again")),
      rpcs_(BuildCounter()
                .Name("headrace_rpcs_total")
                .Help("RPCs answered, by method and status code")
                .Register(*registry_)) {}

Metrics::~Metrics() = default;

absl::Status Metrics::Serve(const std::string& address) {
  absl::MutexLock lock(&mu_);
  try {
    exposer_ = std::make_unique<prometheus::Exposer>(address, 1);
    exposer_->RegisterCollectable(registry_);
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics at ", address, ": ", error.what()));
  }
  return absl::OkStatus();
}

void Metrics::SetWorkersAlive(int64_t count) { workers_.Add({}).Set(static_cast<double>(count)); }

void Metrics::SetBlobBytes(int64_t bytes) { blob_bytes_.Add({}).Set(static_cast<double>(bytes)); }

void Metrics::SetJob(const v1::Job& job) {
  absl::MutexLock lock(&mu_);
  CountRecoveries(job);
  if (const auto it = states_.find(job.id()); it != states_.end()) {
    if (it->second == job.state()) return;
    jobs_.Add({{"state", ShortName(it->second)}}).Decrement();
  }
  jobs_.Add({{"state", ShortName(job.state())}}).Increment();
  if (HasEnded(job.state())) {
    states_.erase(job.id());
    RemoveSeries(job.id());
  } else {
    states_[job.id()] = job.state();
  }
}

void Metrics::AddStep(const std::string& job_id, const v1::StepResult& step) {
  absl::MutexLock lock(&mu_);
  JobSeries& series = SeriesOf(job_id);
  series.steps->Increment();
  series.loss->Set(step.loss());
  series.step_seconds->Set(step.seconds());
  series.bubble->Set(step.bubble());
}

void Metrics::AddCheckpoint(const std::string& job_id, const v1::Checkpoint& checkpoint) {
  if (!checkpoint.damaged().empty() || checkpoint.generation() == 0) return;
  checkpoints_.Increment();
  checkpoint_bytes_.Increment(static_cast<double>(checkpoint.size_bytes()));
  absl::MutexLock lock(&mu_);
  if (!states_.contains(job_id)) return;  // it has ended meanwhile
  JobSeries& series = SeriesOf(job_id);
  if (series.checkpoint_time == nullptr) {
    series.checkpoint_time = &checkpoint_time_.Add({{"job", job_id}});
  }
  series.checkpoint_time->Set(checkpoint.unix_seconds());
}

void Metrics::AddSnapshot(const v1::StageSnapshot& snapshot) {
  if (!snapshot.failed().empty()) {
    snapshot_failures_.Increment();
  } else if (snapshot.in_store() || !snapshot.holder().empty()) {
    snapshot_write_seconds_.Increment(std::max(0.0, snapshot.write_s()));
  } else {
    snapshot_copy_seconds_.Increment(std::max(0.0, snapshot.copy_s()));
  }
}

// Each once, as soon as its stages are loaded.
void Metrics::CountRecoveries(const v1::Job& job) {
  const bool known = states_.contains(job.id());  // else those of before this coordinator started
  for (const v1::Recovery& recovery : job.recoveries()) {
    if (recovery.loaded_unix_s() <= 0) continue;
    JobSeries& series = SeriesOf(job.id());
    if (recovery.generation() <= series.recovered) continue;
    series.recovered = recovery.generation();
    if (!known) continue;
    recoveries_.Increment();
    const double failed_unix_s =
        recovery.failed_unix_s() > 0 ? recovery.failed_unix_s() : recovery.detected_unix_s();
    recovery_seconds_.Increment(std::max(0.0, recovery.loaded_unix_s() - failed_unix_s));
  }
}

void Metrics::CountRpc(const std::string& method, const absl::Status& status) {
  prometheus::Counter* counter = nullptr;
  {
    absl::MutexLock lock(&mu_);
    prometheus::Counter*& known = counters_[{method, status.code()}];
    if (known == nullptr) {
      known = &rpcs_.Add({{"method", method}, {"code", absl::StatusCodeToString(status.code())}});
    }
    counter = known;
  }
  counter->Increment();
}

Metrics::JobSeries& Metrics::SeriesOf(const std::string& job_id) {
  JobSeries& series = series_[job_id];
  if (series.steps == nullptr) {
    const prometheus::Labels labels = {{"job", job_id}};
    series = JobSeries{&steps_.Add(labels), &loss_.Add(labels), &step_seconds_.Add(labels),
                       &bubble_.Add(labels)};
  }
  return series;
}

void Metrics::RemoveSeries(const std::string& job_id) {
  const auto it = series_.find(job_id);
  if (it == series_.end()) return;
  steps_.Remove(it->second.steps);
  loss_.Remove(it->second.loss);
  step_seconds_.Remove(it->second.step_seconds);
  bubble_.Remove(it->second.bubble);
  if (it->second.checkpoint_time != nullptr) checkpoint_time_.Remove(it->second.checkpoint_time);
  series_.erase(it);
}

}  // namespace headrace
