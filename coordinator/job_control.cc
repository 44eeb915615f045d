// The RPCs of CoordinatorService that change what a job or a worker does.
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/status.h"
#include "coordinator/coordinator_service.h"

namespace headrace {
namespace {

absl::Time CommitDeadline() { return absl::Now() + CoordinatorServiceImpl::kCommitTime; }

}  // namespace

absl::Status CoordinatorServiceImpl::Cancel(const v1::CancelJobRequest& request) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, parts_.store->jobs().FindJob(request.job()));
  return parts_.driver->Cancel(id, CommitDeadline());
}

grpc::Status CoordinatorServiceImpl::CancelJob(grpc::ServerContext*,
                                               const v1::CancelJobRequest* request,
                                               v1::CancelJobResponse*) {
  return Answer("CancelJob", Cancel(*request));
}

absl::Status CoordinatorServiceImpl::Checkpoint(const v1::CheckpointJobRequest& request,
                                                v1::CheckpointJobResponse* response) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, parts_.store->jobs().FindJob(request.job()));
  HEADRACE_ASSIGN_OR_RETURN(const JobDriver::Answer answer,
                            parts_.driver->Checkpoint(id, CommitDeadline()));
  response->set_job_id(id);
  response->set_after_step(answer.step);
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::CheckpointJob(grpc::ServerContext*,
                                                   const v1::CheckpointJobRequest* request,
                                                   v1::CheckpointJobResponse* response) {
  return Answer("CheckpointJob", Checkpoint(*request, response));
}

absl::Status CoordinatorServiceImpl::Pause(const v1::PauseJobRequest& request,
                                           v1::PauseJobResponse* response) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, parts_.store->jobs().FindJob(request.job()));
  HEADRACE_RETURN_IF_ERROR(parts_.driver->Pause(id, CommitDeadline()).status());
  response->set_job_id(id);
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::PauseJob(grpc::ServerContext*,
                                              const v1::PauseJobRequest* request,
                                              v1::PauseJobResponse* response) {
  return Answer("PauseJob", Pause(*request, response));
}

absl::Status CoordinatorServiceImpl::Resume(const v1::ResumeJobRequest& request,
                                            v1::ResumeJobResponse* response) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, parts_.store->jobs().FindJob(request.job()));
  HEADRACE_ASSIGN_OR_RETURN(const JobDriver::Answer answer,
                            parts_.driver->Resume(id, CommitDeadline()));
  response->set_job_id(id);
  response->set_from_step(answer.step);
  response->set_message(answer.message);
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::ResumeJob(grpc::ServerContext*,
                                               const v1::ResumeJobRequest* request,
                                               v1::ResumeJobResponse* response) {
  return Answer("ResumeJob", Resume(*request, response));
}

absl::Status CoordinatorServiceImpl::Cordon(const v1::CordonWorkerRequest& request,
                                            v1::CordonWorkerResponse* response) {
  if (request.drain() && !request.cordoned()) {
    return absl::InvalidArgumentError("a worker that is drained is cordoned, too");
  }
  HEADRACE_ASSIGN_OR_RETURN(const JobDriver::Answer answer,
                            parts_.driver->Cordon(request, CommitDeadline()));
  response->set_job_id(answer.job_id);
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::CordonWorker(grpc::ServerContext*,
                                                  const v1::CordonWorkerRequest* request,
                                                  v1::CordonWorkerResponse* response) {
  return Answer("CordonWorker", Cordon(*request, response));
}

}  // namespace headrace
