#include "worker/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"

namespace headrace {

struct WorkerMetrics::Series {
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  prometheus::Counter& steps = prometheus::BuildCounter()
                                   .Name("headrace_worker_steps_total")
                                   .Help("Training steps finished.")
                                   .Register(*registry)
                                   .Add({});
  prometheus::Family<prometheus::Counter>& seconds =
      prometheus::BuildCounter()
          .Name("headrace_worker_seconds_total")
          .Help(
              "Time of the stage's thread by what it did: compute, recompute, wait_receive, "
              "wait_send, optimizer; wall is all of it.")
          .Register(*registry);
  prometheus::Family<prometheus::Gauge>& memory =
      prometheus::BuildGauge()
          .Name("headrace_worker_memory_bytes")
          .Help(
              "Bytes of the stage's arena in use by kind: weights, gradients, optimizer, stash, "
              "workspace, link.")
          .Register(*registry);
  prometheus::Gauge& pinned = prometheus::BuildGauge()
                                  .Name("headrace_worker_pinned_bytes")
                                  .Help(
                                      "Bytes of host memory that are pinned for the stage's CUDA "
                                      "device; 0 without one.")
                                  .Register(*registry)
                                  .Add({});
  prometheus::Family<prometheus::Counter>& link_bytes =
      prometheus::BuildCounter()
          .Name("headrace_worker_link_bytes_total")
          .Help("Bytes of tensors moved between stages, by direction: sent, received.")
          .Register(*registry);
  prometheus::Gauge& serving = prometheus::BuildGauge()
                                   .Name("headrace_worker_serving_stage")
                                   .Help("1 while this worker serves a stage of a job, else 0.")
                                   .Register(*registry)
                                   .Add({});
  prometheus::Family<prometheus::Counter>& snapshots =
      prometheus::BuildCounter()
          .Name("headrace_worker_snapshots_total")
          .Help(
              "Snapshots of the stage's state by where they got: disk (this worker's), neighbour, "
              "store, or failed.")
          .Register(*registry);
  prometheus::Family<prometheus::Counter>& snapshot_seconds =
      prometheus::BuildCounter()
          .Name("headrace_worker_snapshot_seconds_total")
          .Help(
              "Time of snapshots: copy, while compute stood still; write, in the background until "
              "they were where they got.")
          .Register(*registry);
  prometheus::Counter& slices_received =
      prometheus::BuildCounter()
          .Name("headrace_worker_slices_received_total")
          .Help("Snapshots of a neighbour's stage that this worker took in.")
          .Register(*registry)
          .Add({});
  prometheus::Gauge& held_bytes = prometheus::BuildGauge()
                                      .Name("headrace_worker_held_bytes")
                                      .Help("Bytes of snapshots on this worker's disk.")
                                      .Register(*registry)
                                      .Add({});
  std::unique_ptr<prometheus::Exposer> exposer;

  void AddSeconds(const char* kind, double value) {
    seconds.Add({{"kind", kind}}).Increment(std::max(0.0, value));
  }
  void SetMemory(const char* kind, int64_t bytes) {
    memory.Add({{"kind", kind}}).Set(static_cast<double>(bytes));
  }
};

WorkerMetrics::WorkerMetrics() : series_(std::make_unique<Series>()) {}
WorkerMetrics::~WorkerMetrics() = default;

absl::StatusOr<std::unique_ptr<WorkerMetrics>> WorkerMetrics::Create(const std::string& address) {
  std::unique_ptr<WorkerMetrics> metrics(new WorkerMetrics());
  if (address.empty()) return metrics;
  try {
    metrics->series_->exposer = std::make_unique<prometheus::Exposer>(address, 1);
    metrics->series_->exposer->RegisterCollectable(metrics->series_->registry);
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics at ", address, ": ", e.what()));
  }
  return metrics;
}

void WorkerMetrics::StepDone(const v1::StageSeconds& seconds) {
  series_->steps.Increment();
  series_->AddSeconds("compute", seconds.compute());
  series_->AddSeconds("recompute", seconds.recompute());
  series_->AddSeconds("wait_receive", seconds.wait_receive());
  series_->AddSeconds("wait_send", seconds.wait_send());
  series_->AddSeconds("optimizer", seconds.optimizer());
  series_->AddSeconds("wall", seconds.wall());
}

void WorkerMetrics::MemoryInUse(const v1::MemoryBytes& bytes) {
  series_->SetMemory("weights", bytes.weights());
  series_->SetMemory("gradients", bytes.gradients());
  series_->SetMemory("optimizer", bytes.optimizer());
  series_->SetMemory("stash", bytes.stash());
  series_->SetMemory("workspace", bytes.workspace());
  series_->SetMemory("link", bytes.link());
}

void WorkerMetrics::PinnedBytes(int64_t bytes) { series_->pinned.Set(static_cast<double>(bytes)); }

void WorkerMetrics::LinkBytes(int64_t sent, int64_t received) {
  series_->link_bytes.Add({{"direction", "sent"}}).Increment(static_cast<double>(sent));
  series_->link_bytes.Add({{"direction", "received"}}).Increment(static_cast<double>(received));
}

void WorkerMetrics::Snapshot(const v1::StageSnapshot& snapshot) {
  const bool failed = !snapshot.failed().empty();
  const char* const to = failed                       ? "failed"
                         : snapshot.in_store()        ? "store"
                         : !snapshot.holder().empty() ? "neighbour"
                                                      : "disk";
  series_->snapshots.Add({{"to", to}}).Increment();
  if (failed) return;
  // Compute stood still once, whichever ways the snapshot goes from there.
  if (!snapshot.in_store() && snapshot.holder().empty()) {
    series_->snapshot_seconds.Add({{"part", "copy"}}).Increment(std::max(0.0, snapshot.copy_s()));
  }
  series_->snapshot_seconds.Add({{"part", "write"}}).Increment(std::max(0.0, snapshot.write_s()));
}

void WorkerMetrics::SliceReceived() { series_->slices_received.Increment(); }

void WorkerMetrics::HeldBytes(int64_t bytes) {
  series_->held_bytes.Set(static_cast<double>(bytes));
}

void WorkerMetrics::Serving(bool stage) { series_->serving.Set(stage ? 1 : 0); }

}  // namespace headrace
