#include "worker/service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/fault_point.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/assignment.h"

namespace headrace {
namespace {

// Of those on the disk the latest; a coordinator refuses a registration that is too long.
constexpr int kMaxToldSlices = 10'000;

template <typename Request>
absl::Status NoSuchStage(const std::string& worker, const Request& request) {
  return absl::NotFoundError(absl::StrCat("worker ", worker, " has no stage of job ",
                                          request.job_id(), ", generation ", request.generation()));
}

}  // namespace

WorkerService::WorkerService(std::string worker, const WorkerContext& context)
    : GrpcStageService(context.directory),
      worker_(std::move(worker)),
      context_(context),
      slices_(context.slices) {}

std::shared_ptr<StageRunner> WorkerService::current() const {
  absl::MutexLock lock(&mu_);
  return current_;
}

std::shared_ptr<StageRunner> WorkerService::Serving(const std::string& job_id,
                                                    int64_t generation) const {
  std::shared_ptr<StageRunner> runner = current();
  const bool here = runner != nullptr && runner->job_id() == job_id &&
                    runner->generation() == generation && !runner->done();
  return here ? runner : nullptr;
}

bool WorkerService::serving() const {
  const std::shared_ptr<StageRunner> runner = current();
  return runner != nullptr && !runner->done();
}

absl::Status WorkerService::CheckOpen() const {
  if (closed_) return absl::FailedPreconditionError(absl::StrCat("worker ", worker_, " is ending"));
  if (draining_) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker_, " is leaving"));
  }
  return absl::OkStatus();
}

absl::Status WorkerService::ClaimProfiler() {
  absl::MutexLock lock(&mu_);  // so that no stage comes between the look and the claim
  if (context_.profiler == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker_, " does not measure layers: it declares its speed"));
  }
  HEADRACE_RETURN_IF_ERROR(CheckOpen());
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
  if (const absl::Status fault = FaultPoint("assign"); !fault.ok()) return ToGrpc(fault);
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
  if (const absl::Status open = CheckOpen(); !open.ok()) return ToGrpc(open);
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
    return ToGrpc(NoSuchStage(worker_, *request));
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
  response->set_busy(!CheckOpen().ok() || (current_ != nullptr && !current_->done()));
  response->set_last_heartbeat(last_heartbeat_);
  return grpc::Status::OK;
}

grpc::Status WorkerService::ControlStage(grpc::ServerContext*,
                                         const v1::ControlStageRequest* request,
                                         v1::ControlStageResponse*) {
  const std::shared_ptr<StageRunner> runner = Serving(request->job_id(), request->generation());
  if (runner == nullptr) return ToGrpc(NoSuchStage(worker_, *request));
  if (const int64_t stage = runner->standing().stage(); stage != 0) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            absl::StrCat("stage ", stage, " of job ", request->job_id(),
                         " does what stage 0 decides: ask that")};
  }
  LogInfo(absl::StrCat("job ", request->job_id(), ": asked for a checkpoint",
                       request->leave() ? " and to leave" : "", " after the step at hand"));
  runner->Control(request->checkpoint(), request->leave());
  return grpc::Status::OK;
}

grpc::Status WorkerService::PutSlice(grpc::ServerContext* context,
                                     grpc::ServerReader<v1::PutSliceRequest>* reader,
                                     v1::PutSliceResponse*) {
  const absl::Status put =
      slices_.Put(context, reader, [this](const std::string& job_id, int64_t generation) {
        return Serving(job_id, generation) != nullptr;
      });
  if (put.ok()) context_.metrics->SliceReceived();
  return ToGrpc(put);
}

grpc::Status WorkerService::GetSlice(grpc::ServerContext*, const v1::GetSliceRequest* request,
                                     grpc::ServerWriter<v1::GetSliceResponse>* writer) {
  return ToGrpc(slices_.Get(*request, writer));
}

void WorkerService::Describe(v1::RegisterWorkerRequest* request) {
  const std::shared_ptr<StageRunner> runner = current();
  if (runner != nullptr && !runner->done()) *request->mutable_standing() = runner->standing();
  if (context_.slices == nullptr) return;
  for (v1::HeldSlice& held : context_.slices->Held()) {
    if (request->held_size() == kMaxToldSlices) break;
    *request->add_held() = std::move(held);
  }
}

void WorkerService::Drop(const v1::SliceLimit& limit) {
  if (context_.slices != nullptr) context_.slices->Drop(limit.job_id(), limit.before_step());
}

void WorkerService::Describe(v1::HeartbeatRequest* request) {
  std::shared_ptr<StageRunner> runner;
  {
    // Numbered before it looks: whatever has a later number than an answer saw what the answer did.
    absl::MutexLock lock(&mu_);
    request->set_number(++last_heartbeat_);
    request->set_draining(draining_);
    runner = current_;
  }
  if (context_.slices != nullptr) context_.metrics->HeldBytes(context_.slices->HeldBytes());
  if (runner == nullptr || runner->done()) return;
  request->set_job_id(runner->job_id());
  request->set_generation(runner->generation());
}

void WorkerService::EndStage(const std::string& job_id, int64_t generation) {
  const std::shared_ptr<StageRunner> runner = current();
  if (runner == nullptr || runner->job_id() != job_id || runner->generation() != generation) return;
  runner->Stop("");
}

void WorkerService::CoordinatorAway(const std::string& address, absl::Duration silence) {
  const std::shared_ptr<StageRunner> runner = current();
  if (runner == nullptr || silence <= runner->coordinator_timeout()) return;
  runner->Stop(absl::StrFormat("lost the coordinator at %s: no answer for %.1f s", address,
                               absl::ToDoubleSeconds(silence)));
}

void WorkerService::Drain() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
}

bool WorkerService::Close(const std::string& fault, absl::Time deadline) {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  const std::shared_ptr<StageRunner> runner = current();
  if (runner != nullptr) runner->Stop(fault);
  const bool measured = context_.profiler == nullptr || context_.profiler->Finish(deadline);
  if (runner == nullptr || runner->AwaitDone(deadline)) {
    // The last reference goes as this returns and joins the thread: what the stage reports last of
    // all is in the Reporter then.
    absl::MutexLock lock(&mu_);
    current_ = nullptr;
    return measured;
  }
  runner->ReportUnended();
  return false;
}

}  // namespace headrace
