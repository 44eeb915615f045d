// Measures layers while no stage is here, for the planner: one request at a time, on a thread of
// its own. Serves ProfileLayers (worker.proto).
#pragma once

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "headrace/v1/worker.pb.h"
#include "worker/assignment.h"
#include "worker/backend/compute_device.h"

namespace headrace {

// Thread-safe.
class LayerProfiler {
 public:
  // `flops_per_second`: for a guess at what a layer will take; 0: unknown. Layers are measured on
  // devices that `open` opens.
  LayerProfiler(const WorkerLimits& limits, double flops_per_second, DeviceOpener open = OpenCpu)
      : limits_(limits), flops_per_second_(flops_per_second), open_(std::move(open)) {}

  // Claims the profiler for one Run, which must follow. FAILED_PRECONDITION: it is at work already.
  absl::Status Claim();
  // Measures and gives the claim back. Blocks until done; `abandoned` is asked now and then, and
  // ends it early. A layer that cannot be measured (too large for the worker's memory, too long for
  // the budget) is passed over with a sentence.
  //   INVALID_ARGUMENT     the job's model, batch or a layer's number is wrong
  //   FAILED_PRECONDITION  precision bf16 on a device that has not got it
  //   CANCELLED            abandoned, or ended by Finish
  absl::StatusOr<v1::ProfileLayersResponse> Run(const v1::ProfileLayersRequest& request,
                                                const std::function<bool()>& abandoned);
  // Ends what is under way. False: it was not gone by the deadline (one pass of one layer cannot be
  // interrupted).
  bool Finish(absl::Time deadline);

 private:
  struct Task {
    StageShape layer;
    double guess_s = 0;  // of a warm-up and a round
  };
  absl::StatusOr<std::vector<Task>> Prepare(const v1::ProfileLayersRequest& request) const;
  absl::Status Measure(const Task& task, absl::Time deadline,
                       v1::ProfileLayersResponse* response) const;

  const WorkerLimits limits_;
  const double flops_per_second_;
  const DeviceOpener open_;
  std::atomic<bool> cancelled_ = false;
  absl::Mutex mu_;
  bool claimed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace headrace
