// What Prometheus sees (docs/architecture.md has the list). Series of a job go when it has ended,
// but for the counts of jobs by state.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "headrace/v1/job.pb.h"
#include "headrace/v1/worker.pb.h"

namespace headrace {

// Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  // Serves them at http://`address`/metrics until this goes away. UNAVAILABLE: cannot listen there.
  absl::Status Serve(const std::string& address);

  // What would be served now.
  std::vector<prometheus::MetricFamily> Collect() const { return registry_->Collect(); }

  void SetWorkersAlive(int64_t count);
  void SetBlobBytes(int64_t bytes);
  // A job is in this state now.
  void SetJob(const v1::Job& job);
  void AddStep(const std::string& job_id, const v1::StepResult& step);
  // It is durable. One that is damaged, or was taken over from another job, does not count.
  void AddCheckpoint(const std::string& job_id, const v1::Checkpoint& checkpoint);
  // As a stage reports it; what it had reported of the same snapshot before counts too, once each.
  void AddSnapshot(const v1::StageSnapshot& snapshot);
  void CountRpc(const std::string& method, const absl::Status& status);

 private:
  struct JobSeries {
    prometheus::Counter* steps = nullptr;
    prometheus::Gauge* loss = nullptr;
    prometheus::Gauge* step_seconds = nullptr;
    prometheus::Gauge* bubble = nullptr;
    prometheus::Gauge* checkpoint_time = nullptr;  // once there is one
    int64_t recovered = 0;                         // last generation whose recovery was counted
  };
  JobSeries& SeriesOf(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveSeries(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountRecoveries(const v1::Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // shared_ptr: the exposer asks for one.
  const std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Gauge>& jobs_;
  prometheus::Family<prometheus::Gauge>& workers_;
  prometheus::Family<prometheus::Gauge>& blob_bytes_;
  prometheus::Family<prometheus::Counter>& steps_;
  prometheus::Family<prometheus::Gauge>& loss_;
  prometheus::Family<prometheus::Gauge>& step_seconds_;
  prometheus::Family<prometheus::Gauge>& bubble_;
  prometheus::Family<prometheus::Gauge>& checkpoint_time_;
  prometheus::Counter& checkpoints_;
  prometheus::Counter& checkpoint_bytes_;
  prometheus::Counter& snapshot_copy_seconds_;
  prometheus::Counter& snapshot_write_seconds_;
  prometheus::Counter& snapshot_failures_;
  prometheus::Counter& recoveries_;
  prometheus::Counter& recovery_seconds_;
  prometheus::Family<prometheus::Counter>& rpcs_;

  absl::Mutex mu_;
  std::map<std::string, v1::JobState> states_ ABSL_GUARDED_BY(mu_);  // of living jobs
  std::map<std::string, JobSeries> series_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, absl::StatusCode>, prometheus::Counter*> counters_
      ABSL_GUARDED_BY(mu_);  // of rpcs_: looking one up there costs more than answering a heartbeat
  std::unique_ptr<prometheus::Exposer> exposer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
