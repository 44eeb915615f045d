// What clients call. RPC in, call out; decides nothing. Handlers run on gRPC's bounded pool of
// threads; those that read the store or move blobs wait for the disk there, never for one another.
#pragma once

#include <atomic>

#include "coordinator/job_driver.h"
#include "coordinator/metrics.h"
#include "coordinator/registry.h"
#include "coordinator/store/store.h"
#include "coordinator/stream_guard.h"
#include "coordinator/trace_buffer.h"
#include "coordinator/watch_hub.h"
#include "headrace/v1/cluster.grpc.pb.h"

namespace headrace {

// Thread-safe, as gRPC asks. The parts must outlive it.
class CoordinatorServiceImpl final : public v1::CoordinatorService::Service {
 public:
  struct Parts {
    Store* store = nullptr;
    Registry* registry = nullptr;
    JobDriver* driver = nullptr;
    WatchHub* hub = nullptr;
    Metrics* metrics = nullptr;
    TraceBuffer* traces = nullptr;
    PlanFunctions plan;
    StreamGuard* watches = nullptr;
    StreamGuard* blobs = nullptr;
    StreamGuard* generates = nullptr;
  };
  static constexpr absl::Duration kCommitTime = absl::Seconds(10);  // on a slow disk

  explicit CoordinatorServiceImpl(Parts parts) : parts_(std::move(parts)) {}

  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override;
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override;
  grpc::Status ListJobSteps(grpc::ServerContext*, const v1::ListJobStepsRequest* request,
                            v1::ListJobStepsResponse* response) override;
  grpc::Status ListJobTraces(grpc::ServerContext*, const v1::ListJobTracesRequest* request,
                             v1::ListJobTracesResponse* response) override;
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* response) override;
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override;
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                         v1::CancelJobResponse*) override;
  grpc::Status CheckpointJob(grpc::ServerContext*, const v1::CheckpointJobRequest* request,
                             v1::CheckpointJobResponse* response) override;
  grpc::Status PauseJob(grpc::ServerContext*, const v1::PauseJobRequest* request,
                        v1::PauseJobResponse* response) override;
  grpc::Status ResumeJob(grpc::ServerContext*, const v1::ResumeJobRequest* request,
                         v1::ResumeJobResponse* response) override;
  grpc::Status CordonWorker(grpc::ServerContext*, const v1::CordonWorkerRequest* request,
                            v1::CordonWorkerResponse* response) override;
  grpc::Status ListJobEvents(grpc::ServerContext*, const v1::ListJobEventsRequest* request,
                             v1::ListJobEventsResponse* response) override;
  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override;
  grpc::Status PlanJob(grpc::ServerContext*, const v1::PlanJobRequest* request,
                       v1::PlanJobResponse* response) override;
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  grpc::Status StatBlob(grpc::ServerContext*, const v1::StatBlobRequest* request,
                        v1::StatBlobResponse* response) override;
  grpc::Status UploadBlob(grpc::ServerContext* context,
                          grpc::ServerReader<v1::UploadBlobRequest>* reader,
                          v1::UploadBlobResponse*) override;
  grpc::Status DownloadBlob(grpc::ServerContext* context, const v1::DownloadBlobRequest* request,
                            grpc::ServerWriter<v1::DownloadBlobResponse>* writer) override;

 private:
  grpc::Status Answer(const char* method, const absl::Status& status);

  // coordinator_service.cc
  absl::Status CheckDataset(const v1::Dataset& dataset);
  // The id of the job it begins from; empty: none.
  absl::StatusOr<std::string> Origin(const v1::SubmitJobRequest& request);
  absl::Status Submit(const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response);
  absl::Status Get(const v1::GetJobRequest& request, v1::GetJobResponse* response);
  absl::Status ListSteps(const v1::ListJobStepsRequest& request,
                         v1::ListJobStepsResponse* response);
  absl::Status ListTraces(const v1::ListJobTracesRequest& request,
                          v1::ListJobTracesResponse* response);
  absl::Status ListEvents(const v1::ListJobEventsRequest& request,
                          v1::ListJobEventsResponse* response);
  absl::StatusOr<std::vector<PlanWorker>> Measured(const v1::JobSpec& spec,
                                                   const std::vector<v1::WorkerInfo>& workers);
  absl::Status Plan(const v1::PlanJobRequest& request, v1::PlanJobResponse* response);

  // job_control.cc
  absl::Status Cancel(const v1::CancelJobRequest& request);
  absl::Status Checkpoint(const v1::CheckpointJobRequest& request,
                          v1::CheckpointJobResponse* response);
  absl::Status Pause(const v1::PauseJobRequest& request, v1::PauseJobResponse* response);
  absl::Status Resume(const v1::ResumeJobRequest& request, v1::ResumeJobResponse* response);
  absl::Status Cordon(const v1::CordonWorkerRequest& request, v1::CordonWorkerResponse* response);

  // stream_handlers.cc
  absl::Status Watch(grpc::ServerContext* context, const v1::WatchJobRequest& request,
                     grpc::ServerWriter<v1::WatchJobResponse>* writer);
  absl::Status RunGenerate(grpc::ServerContext* context, const v1::GenerateRequest& request,
                           grpc::ServerWriter<v1::GenerateResponse>* writer);
  absl::Status Upload(grpc::ServerContext* context,
                      grpc::ServerReader<v1::UploadBlobRequest>* reader);
  absl::Status Download(grpc::ServerContext* context, const v1::DownloadBlobRequest& request,
                        grpc::ServerWriter<v1::DownloadBlobResponse>* writer);

  const Parts parts_;
};

}  // namespace headrace
