// StageService: what the coordinator and neighbours call. Checks requests, hands them to the one
// StageRunner there is at a time, and never computes on an RPC's thread, nor touches the disk but
// for slices (SliceServer). StreamTensors comes from the transport.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "headrace/v1/worker.grpc.pb.h"
#include "worker/checkpoint/slice_server.h"
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

  // NOT_FOUND: no such stage here. INVALID_ARGUMENT: it is not stage 0.
  grpc::Status ControlStage(grpc::ServerContext*, const v1::ControlStageRequest* request,
                            v1::ControlStageResponse*) override;
  // As SliceServer::Put.
  grpc::Status PutSlice(grpc::ServerContext* context,
                        grpc::ServerReader<v1::PutSliceRequest>* reader,
                        v1::PutSliceResponse*) override;
  // As SliceServer::Get.
  grpc::Status GetSlice(grpc::ServerContext*, const v1::GetSliceRequest* request,
                        grpc::ServerWriter<v1::GetSliceResponse>* writer) override;

  // Fills in the job served now (an empty id: none), the heartbeat's number, and whether this
  // worker is about to leave.
  void Describe(v1::HeartbeatRequest* request);
  // Fills in what is served and which slices are held, for a coordinator that may know of neither.
  void Describe(v1::RegisterWorkerRequest* request);
  // Deletes slices of no use.
  void Drop(const v1::SliceLimit& limit);
  // Ends the stage of this job and generation, if it is here; does not wait.
  void EndStage(const std::string& job_id, int64_t generation);
  // The coordinator at this address has not answered for `silence`: ends the stage if that is
  // longer than it may train on alone; does not wait.
  void CoordinatorAway(const std::string& address, absl::Duration silence);
  // This worker will leave: accepts no stage from now on, and its heartbeats ask for the one that
  // is here to be moved away.
  void Drain();
  // Whether a stage is here.
  bool serving() const;
  // For the end of the process: accepts no stage from now on, says it is busy, ends the stage or
  // the measurement that is here and waits for that until `deadline`. False: it is not gone, and
  // its fault was reported in its place.
  bool Close(const std::string& fault, absl::Time deadline);

 private:
  absl::Status ClaimProfiler();
  // Why no stage is to come here; OK: none of these reasons.
  absl::Status CheckOpen() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The stage of this job and generation, if it is here and not done; else null.
  std::shared_ptr<StageRunner> Serving(const std::string& job_id, int64_t generation) const;
  // Shared: an RPC may wait for a runner that another is about to replace.
  std::shared_ptr<StageRunner> current() const;

  const std::string worker_;
  const WorkerContext context_;
  mutable absl::Mutex mu_;
  std::shared_ptr<StageRunner> current_ ABSL_GUARDED_BY(mu_);  // the latest, maybe done
  uint64_t last_heartbeat_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false, draining_ ABSL_GUARDED_BY(mu_) = false;
  SliceServer slices_;
};

}  // namespace headrace
