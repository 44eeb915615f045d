// What workers call: register, heartbeat, report. Passes on; decides nothing.
#pragma once

#include <string>

#include "coordinator/job_driver.h"
#include "coordinator/metrics.h"
#include "coordinator/registry.h"
#include "headrace/v1/worker.grpc.pb.h"

namespace headrace {

// Thread-safe, as gRPC asks. The parts must outlive it.
class RegistryServiceImpl final : public v1::WorkerRegistryService::Service {
 public:
  struct Lease {
    absl::Duration heartbeat;
    absl::Duration lease;
  };
  static constexpr int kMaxHeldSlices = 65536;  // that a worker may name

  RegistryServiceImpl(Registry* registry, JobDriver* driver, Metrics* metrics, Lease lease);

  grpc::Status RegisterWorker(grpc::ServerContext*, const v1::RegisterWorkerRequest* request,
                              v1::RegisterWorkerResponse* response) override;
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override;
  grpc::Status ReportEvents(grpc::ServerContext*, const v1::ReportEventsRequest* request,
                            v1::ReportEventsResponse*) override;

 private:
  absl::Status Register(const v1::RegisterWorkerRequest& request);
  absl::Status Beat(const v1::HeartbeatRequest& request, v1::HeartbeatResponse* response);
  absl::Status Report(const v1::ReportEventsRequest& request);
  grpc::Status Answer(const char* method, const absl::Status& status);

  Registry* const registry_;
  JobDriver* const driver_;
  Metrics* const metrics_;
  const Lease lease_;
  const std::string process_;  // this coordinator's: workers tell a new one by it
};

}  // namespace headrace
