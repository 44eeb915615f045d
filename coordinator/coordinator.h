// A whole coordinator: store, registry, driver, services and the server they hang on. What main
// runs, and what tests start in their own process.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/coordinator_service.h"
#include "coordinator/job_driver.h"
#include "coordinator/metrics.h"
#include "coordinator/registry.h"
#include "coordinator/registry_service.h"
#include "coordinator/store/store.h"
#include "coordinator/stream_guard.h"
#include "coordinator/trace_buffer.h"
#include "coordinator/watch_hub.h"

namespace headrace {

struct CoordinatorOptions {
  std::string listen = "127.0.0.1:7070";  // port 0: any
  std::string data_dir;
  std::string metrics;       // address; empty: none
  std::string address_file;  // the bound address is written here once it serves; empty: nowhere
  const Clock* clock = Clock::Real();
  absl::Duration heartbeat = absl::Milliseconds(500);
  absl::Duration lease = absl::Seconds(2);
  absl::Duration store_patience = absl::Seconds(60);  // JobDriver::Parts
  // Workers of a job that ran have this long, or two leases, to come back after a restart.
  absl::Duration adopt_time = JobMachine::kAdoptTime;
  PlanFunctions plan;  // empty: the planner's
};

// Thread-safe.
class Coordinator {
 public:
  static constexpr int kMaxWatches = 64;
  static constexpr int kMaxBlobStreams = 64;

  // Serves when it returns.
  //   FAILED_PRECONDITION, DATA_LOSS  as Store::Open
  //   UNAVAILABLE                     cannot listen on an address (names it)
  //   INVALID_ARGUMENT                no address
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(CoordinatorOptions options);
  // Stops, if Stop was not called.
  ~Coordinator();

  // Says NOT_SERVING, ends streams, waits for RPCs up to `time`, then breaks them off. Once.
  void Stop(absl::Duration time);

  const std::string& address() const { return address_; }

 private:
  explicit Coordinator(CoordinatorOptions options);
  absl::Status Open();
  absl::Status Listen();

  const CoordinatorOptions options_;
  std::string address_;
  Metrics metrics_;
  WatchHub hub_;
  Registry registry_;
  TraceBuffer traces_;
  StreamGuard watches_{"watch", kMaxWatches};
  StreamGuard blobs_{"blob", kMaxBlobStreams};
  StreamGuard generates_{"generate", JobMachine::kMaxGenerates};
  std::unique_ptr<Store> store_;
  std::unique_ptr<JobDriver> driver_;
  std::unique_ptr<CoordinatorServiceImpl> clients_;
  std::unique_ptr<RegistryServiceImpl> workers_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace headrace
