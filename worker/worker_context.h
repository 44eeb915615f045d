// What all stages of a worker share.
#pragma once

#include <functional>
#include <string>

#include "headrace/v1/cluster.grpc.pb.h"
#include "worker/assignment.h"
#include "worker/backend/compute_device.h"
#include "worker/clock_alignment.h"
#include "worker/layer_profiler.h"
#include "worker/metrics.h"
#include "worker/reporter.h"
#include "worker/transport/link.h"

namespace headrace {

class SliceStore;

// All pointers must outlive every stage.
struct WorkerContext {
  WorkerLimits limits;
  std::string data_dir;  // blobs are kept in data_dir/blobs, slices pass through data_dir/slices
  v1::CoordinatorService::StubInterface* coordinator = nullptr;
  Reporter* reporter = nullptr;
  StageDirectory* directory = nullptr;
  WorkerMetrics* metrics = nullptr;
  // Snapshots, own ones and neighbours'. Null: none is taken, and no training goes on from one.
  SliceStore* slices = nullptr;
  LayerProfiler* profiler = nullptr;      // null: this worker does not measure layers
  const ClockAlignment* clock = nullptr;  // null: spans are told on this worker's clock
  DeviceOpener open_device = OpenCpu;     // what stages compute on
  // Called when nothing can be computed on the device any more in this process, after the stage has
  // told its fault. Null: nobody cares.
  std::function<void(const std::string& why)> device_lost;
};

}  // namespace headrace
