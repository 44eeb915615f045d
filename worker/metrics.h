// What Prometheus sees of a worker: headrace_worker_*; the help texts in metrics.cc say what each
// is. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"
#include "headrace/v1/worker.pb.h"

namespace headrace {

class WorkerMetrics {
 public:
  // Serves /metrics at `address` ("host:port"); empty: counts, serves nothing.
  //   UNAVAILABLE  the address cannot be bound
  static absl::StatusOr<std::unique_ptr<WorkerMetrics>> Create(const std::string& address);
  ~WorkerMetrics();

  void StepDone(const v1::StageSeconds& seconds);
  void MemoryInUse(const v1::MemoryBytes& bytes);
  void PinnedBytes(int64_t bytes);
  void LinkBytes(int64_t sent, int64_t received);  // since the last call
  void Serving(bool stage);
  // What a stage reports of a snapshot: each way it went, or that it went nowhere.
  void Snapshot(const v1::StageSnapshot& snapshot);
  void SliceReceived();           // a neighbour's is kept here
  void HeldBytes(int64_t bytes);  // of slices on this worker's disk, now

 private:
  WorkerMetrics();
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace headrace
