#include "coordinator/metrics.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "coordinator/job_messages.h"
#include "coordinator/store/job_store.h"

namespace headrace {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;

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
  series_.erase(it);
}

}  // namespace headrace
