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

 private:
  WorkerMetrics();
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace headrace
