#include "worker/service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "worker/assignment.h"

namespace headrace {

WorkerService::WorkerService(std::string worker, const WorkerContext& context)
    : GrpcStageService(context.directory), worker_(std::move(worker)), context_(context) {}

std::shared_ptr<StageRunner> WorkerService::current() const {
  absl::MutexLock lock(&mu_);
  return current_;
}

absl::Status WorkerService::ClaimProfiler() {
  absl::MutexLock lock(&mu_);  // so that no stage comes between the look and the claim
  if (context_.profiler == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker_, " does not measure layers: it declares its speed"));
  }
  if (closed_) return absl::FailedPreconditionError(absl::StrCat("worker ", worker_, " is ending"));
  if (current_ != nullptr && !current_->done()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker_, " is busy with job ", current_->job_id()));
  }
  return context_.profiler->Claim();
}

grpc::Status WorkerService::ProfileLayers(grpc::ServerContext* context,
                                          const v1::ProfileLayersRequest* request,
                                          v1::ProfileLayersResponse* response) {
  if (const absl::Status claimed = ClaimProfiler(); !claimed.ok()) return ToGrpc(claimed);
  auto measured = context_.profiler->Run(*request, [context] { return context->IsCancelled(); });
  if (!measured.ok()) return ToGrpc(measured.status());
  *response = *std::move(measured);
  return grpc::Status::OK;
}

grpc::Status WorkerService::AssignStage(grpc::ServerContext*, const v1::AssignStageRequest* request,
                                        v1::AssignStageResponse*) {
  absl::StatusOr<StageJob> job = CheckAssignment(request->assignment(), context_.limits);
  if (!job.ok()) return ToGrpc(job.status());
  if (job->worker() != worker_) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            absl::StrCat("stage ", job->stage(), " is for worker ", job->worker(), ", this is ",
                         worker_)};
  }
  // The coordinator may have given up waiting for the end of a stage that it stopped.
  if (const std::shared_ptr<StageRunner> runner = current();
      runner != nullptr && runner->stopped()) {
    runner->AwaitDone(absl::Now() + kStopTime);
  }
  std::shared_ptr<StageRunner> previous;  // destroyed, joined, after the lock
  absl::MutexLock lock(&mu_);
  if (closed_) {
    return {grpc::StatusCode::FAILED_PRECONDITION, absl::StrCat("worker ", worker_, " is ending")};
  }
  if (current_ != nullptr && !current_->done()) {
    if (current_->job_id() == job->job_id && current_->generation() == job->generation) {
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::FAILED_PRECONDITION,
            absl::StrCat("worker ", worker_, " is busy with job ", current_->job_id())};
  }
  LogInfo(absl::StrCat("job ", job->job_id, ": assigned stage ", job->stage(), " of ",
                       job->num_stages()));
  previous = std::move(current_);
  current_ = std::make_shared<StageRunner>(*std::move(job), context_);
  return grpc::Status::OK;
}

grpc::Status WorkerService::StartStage(grpc::ServerContext*, const v1::StartStageRequest* request,
                                       v1::StartStageResponse*) {
  const std::shared_ptr<StageRunner> runner = current();
  if (runner == nullptr || runner->job_id() != request->job_id() ||
      runner->generation() != request->generation()) {
    return {grpc::StatusCode::NOT_FOUND,
            absl::StrCat("worker ", worker_, " has no stage of job ", request->job_id(),
                         ", generation ", request->generation())};
  }
  return ToGrpc(runner->Start());
}

grpc::Status WorkerService::StopStage(grpc::ServerContext*, const v1::StopStageRequest* request,
                                      v1::StopStageResponse* response) {
  const std::shared_ptr<StageRunner> runner = current();
  if (runner != nullptr && runner->job_id() == request->job_id() &&
      runner->generation() <= request->generation()) {
    if (!runner->done()) {
      LogInfo(absl::StrCat("job ", request->job_id(), ": told to stop: ", request->reason()));
    }
    *response->mutable_flight_record() = runner->flight_record();
    *response->mutable_trace() = runner->DrainTrace();
    runner->Stop("");
    if (!runner->AwaitDone(absl::Now() + kStopTime)) {
      LogWarning(absl::StrCat("job ", request->job_id(), ": still ending after ",
                              absl::FormatDuration(kStopTime)));
    }
  }
  absl::MutexLock lock(&mu_);
  response->set_busy(closed_ || (current_ != nullptr && !current_->done()));
  response->set_last_heartbeat(last_heartbeat_);
  return grpc::Status::OK;
}

void WorkerService::Describe(v1::HeartbeatRequest* request) {
  std::shared_ptr<StageRunner> runner;
  {
    // Numbered before it looks: whatever has a later number than an answer saw what the answer did.
    absl::MutexLock lock(&mu_);
    request->set_number(++last_heartbeat_);
    runner = current_;
  }
  if (runner == nullptr || runner->done()) return;
  request->set_job_id(runner->job_id());
  request->set_generation(runner->generation());
}

void WorkerService::EndStage(const std::string& job_id, int64_t generation) {
  const std::shared_ptr<StageRunner> runner = current();
  if (runner == nullptr || runner->job_id() != job_id || runner->generation() != generation) return;
  runner->Stop("");
}

void WorkerService::EndAnyStage(const std::string& fault) {
  if (const std::shared_ptr<StageRunner> runner = current()) runner->Stop(fault);
}

bool WorkerService::Close(const std::string& fault, absl::Time deadline) {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  const std::shared_ptr<StageRunner> runner = current();
  if (runner != nullptr) runner->Stop(fault);
  const bool measured = context_.profiler == nullptr || context_.profiler->Finish(deadline);
  if (runner == nullptr || runner->AwaitDone(deadline)) return measured;
  runner->ReportUnended();
  return false;
}

}  // namespace headrace
