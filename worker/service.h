// StageService: what the coordinator and neighbours call. Checks requests, hands them to the one
// StageRunner there is at a time, and never computes or touches disk on an RPC's thread.
// StreamTensors comes from the transport.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "headrace/v1/worker.grpc.pb.h"
#include "worker/stage_runner.h"
#include "worker/transport/grpc_service.h"

namespace headrace {

// Thread-safe.
class WorkerService final : public GrpcStageService {
 public:
  // How long StopStage waits for the stage to be gone; a coordinator waits a second for the reply.
  static constexpr absl::Duration kStopTime = absl::Milliseconds(800);

  // What `context` points to must outlive the service.
  WorkerService(std::string worker, const WorkerContext& context);

  // Blocks its thread, not computing. FAILED_PRECONDITION: a stage is here, or another measurement,
  // or this worker does not measure. Else as LayerProfiler::Run.
  grpc::Status ProfileLayers(grpc::ServerContext* context, const v1::ProfileLayersRequest* request,
                             v1::ProfileLayersResponse* response) override;
  // FAILED_PRECONDITION: busy with another job, or closed. INVALID_ARGUMENT, RESOURCE_EXHAUSTED: as
  // CheckAssignment. The same assignment again is fine.
  grpc::Status AssignStage(grpc::ServerContext*, const v1::AssignStageRequest* request,
                           v1::AssignStageResponse*) override;
  // NOT_FOUND: no such stage here. FAILED_PRECONDITION: not ready, or started already.
  grpc::Status StartStage(grpc::ServerContext*, const v1::StartStageRequest* request,
                          v1::StartStageResponse*) override;
  // OK in any case; the flight record of the stage if it is or was the latest one here, and whether
  // the worker is busy all the same after kStopTime.
  grpc::Status StopStage(grpc::ServerContext*, const v1::StopStageRequest* request,
                         v1::StopStageResponse* response) override;

  // Fills in the job served now (an empty id: none) and the heartbeat's number.
  void Describe(v1::HeartbeatRequest* request);
  // Ends the stage of this job and generation, if it is here; does not wait.
  void EndStage(const std::string& job_id, int64_t generation);
  // Ends whatever stage is here with `fault` as its sentence; does not wait.
  void EndAnyStage(const std::string& fault);
  // For the end of the process: accepts no stage from now on, says it is busy, ends the stage or
  // the measurement that is here and waits for that until `deadline`. False: it is not gone, and
  // its fault was reported in its place.
  bool Close(const std::string& fault, absl::Time deadline);

 private:
  absl::Status ClaimProfiler();
  // Shared: an RPC may wait for a runner that another is about to replace.
  std::shared_ptr<StageRunner> current() const;

  const std::string worker_;
  const WorkerContext context_;
  mutable absl::Mutex mu_;
  std::shared_ptr<StageRunner> current_ ABSL_GUARDED_BY(mu_);  // the latest, maybe done
  uint64_t last_heartbeat_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace headrace
