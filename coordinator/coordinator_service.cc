#include "coordinator/coordinator_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/status.h"
#include "common/token_file.h"
#include "coordinator/cost_table.h"
#include "coordinator/job_origin.h"
#include "coordinator/job_view.h"
#include "coordinator/suited_workers.h"
#include "coordinator/trace_pages.h"
#include "plan/job_check.h"

namespace headrace {
namespace {

constexpr int64_t kMaxEventsAtOnce = 10000;
constexpr int64_t kMaxStepsAtOnce = 1000;
constexpr size_t kMaxStepBytes = 1 << 20;  // a client takes messages of 8 MiB

}  // namespace

grpc::Status CoordinatorServiceImpl::Answer(const char* method, const absl::Status& status) {
  parts_.metrics->CountRpc(method, status);
  return ToGrpc(status);
}

// The data must be here and be what the request says, for workers will believe it.
absl::Status CoordinatorServiceImpl::CheckDataset(const v1::Dataset& dataset) {
  absl::StatusOr<std::string> path = parts_.store->blobs().Path(dataset.sha256());
  if (absl::IsNotFound(path.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("upload the data first: ", path.status().message()));
  }
  if (!path.ok()) return path.status();
  // No row uses it yet, and old ones of those are deleted.
  HEADRACE_RETURN_IF_ERROR(parts_.store->blobs().Touch(dataset.sha256()));
  absl::StatusOr<std::unique_ptr<TokenFile>> opened = TokenFile::Open(*path);
  if (!opened.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("blob ", dataset.sha256(), " is no token file: ", opened.status().message()));
  }
  const TokenFile& file = **opened;
  if (file.size() != dataset.num_tokens() || file.max_token() != dataset.max_token() ||
      file.token_bytes() != dataset.token_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the dataset says ", dataset.num_tokens(), " tokens of ",
                     dataset.token_bytes(), " bytes up to ", dataset.max_token(), ", its blob ",
                     file.size(), " of ", file.token_bytes(), " up to ", file.max_token()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CoordinatorServiceImpl::Origin(const v1::SubmitJobRequest& request) {
  if (request.from_job().empty()) {
    if (request.from_step() == 0) return "";
    return absl::InvalidArgumentError("from_step: of which job?");
  }
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, jobs.FindJob(request.from_job()));
  HEADRACE_ASSIGN_OR_RETURN(const StoredJob from, jobs.LoadJob(id));
  HEADRACE_RETURN_IF_ERROR(CheckOrigin(request, from).status());
  return id;
}

absl::Status CoordinatorServiceImpl::Submit(const v1::SubmitJobRequest& request,
                                            v1::SubmitJobResponse* response) {
  HEADRACE_RETURN_IF_ERROR(ValidateJob(request.spec(), &request.dataset()));
  HEADRACE_RETURN_IF_ERROR(CheckDataset(request.dataset()));
  const bool simulate = request.options().simulate();
  if (simulate && request.options().hash_tensors()) {
    return absl::InvalidArgumentError("a simulation has no tensors to hash and compare");
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::string origin, Origin(request));
  const std::vector<v1::WorkerInfo> workers = parts_.registry->List();
  HEADRACE_RETURN_IF_ERROR(CheckSuited(workers, simulate));
  // Here rather than on the driver's thread, which all jobs share: advice takes its time.
  const absl::Status fits =
      parts_.plan
          .train(request.spec(), &request.dataset(),
                 ToPlanWorkers(SuitedWorkers(workers, simulate)), Advice::kGiven)
          .status();
  if (!fits.ok() && !absl::IsUnavailable(fits)) return fits;  // too few workers: it can wait
  HEADRACE_ASSIGN_OR_RETURN(const JobDriver::Answer submitted,
                            parts_.driver->Submit(request, origin, absl::Now() + kCommitTime));
  response->set_job_id(submitted.job_id);
  response->set_message(submitted.message);
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::SubmitJob(grpc::ServerContext*,
                                               const v1::SubmitJobRequest* request,
                                               v1::SubmitJobResponse* response) {
  return Answer("SubmitJob", Submit(*request, response));
}

absl::Status CoordinatorServiceImpl::Get(const v1::GetJobRequest& request,
                                         v1::GetJobResponse* response) {
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, jobs.FindJob(request.job()));
  HEADRACE_ASSIGN_OR_RETURN(StoredJob stored, jobs.LoadJob(id));
  *response->mutable_job() = std::move(stored.job);
  TrimForReader(response->mutable_job());
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                                            v1::GetJobResponse* response) {
  return Answer("GetJob", Get(*request, response));
}

absl::Status CoordinatorServiceImpl::ListSteps(const v1::ListJobStepsRequest& request,
                                               v1::ListJobStepsResponse* response) {
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, jobs.FindJob(request.job()));
  HEADRACE_ASSIGN_OR_RETURN(std::vector<v1::StepResult> steps,
                            jobs.LoadSteps(id, request.after_step(), kMaxStepsAtOnce));
  // A step names every stage's seconds, so many stages make large steps.
  size_t bytes = 0;
  for (v1::StepResult& step : steps) {
    bytes += step.ByteSizeLong();
    if (response->steps_size() > 0 && bytes > kMaxStepBytes) break;
    *response->add_steps() = std::move(step);
  }
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::ListJobSteps(grpc::ServerContext*,
                                                  const v1::ListJobStepsRequest* request,
                                                  v1::ListJobStepsResponse* response) {
  return Answer("ListJobSteps", ListSteps(*request, response));
}

absl::Status CoordinatorServiceImpl::ListTraces(const v1::ListJobTracesRequest& request,
                                                v1::ListJobTracesResponse* response) {
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, jobs.FindJob(request.job()));
  // In this order: a trace leaves the buffer once it is in the store.
  std::optional<v1::JobTrace> trace = parts_.traces->Find(id);
  if (!trace) {
    HEADRACE_ASSIGN_OR_RETURN(trace, jobs.LoadTrace(id));
  }
  HEADRACE_ASSIGN_OR_RETURN(const StoredJob stored, jobs.LoadJob(id));
  HEADRACE_ASSIGN_OR_RETURN(*response, PageOfTrace(stored.job, *std::move(trace), request));
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::ListJobTraces(grpc::ServerContext*,
                                                   const v1::ListJobTracesRequest* request,
                                                   v1::ListJobTracesResponse* response) {
  return Answer("ListJobTraces", ListTraces(*request, response));
}

grpc::Status CoordinatorServiceImpl::ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                                              v1::ListJobsResponse* response) {
  absl::StatusOr<std::vector<v1::Job>> jobs = parts_.store->jobs().ListJobs();
  if (jobs.ok()) {
    for (v1::Job& job : *jobs) *response->add_jobs() = std::move(job);
  }
  return Answer("ListJobs", jobs.status());
}

absl::Status CoordinatorServiceImpl::ListEvents(const v1::ListJobEventsRequest& request,
                                                v1::ListJobEventsResponse* response) {
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_ASSIGN_OR_RETURN(const std::string id, jobs.FindJob(request.job()));
  HEADRACE_ASSIGN_OR_RETURN(std::vector<v1::JobEvent> events,
                            jobs.LoadEvents(id, request.after_event(), kMaxEventsAtOnce));
  for (v1::JobEvent& event : events) *response->add_events() = std::move(event);
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::ListJobEvents(grpc::ServerContext*,
                                                   const v1::ListJobEventsRequest* request,
                                                   v1::ListJobEventsResponse* response) {
  return Answer("ListJobEvents", ListEvents(*request, response));
}

grpc::Status CoordinatorServiceImpl::ListWorkers(grpc::ServerContext*,
                                                 const v1::ListWorkersRequest*,
                                                 v1::ListWorkersResponse* response) {
  for (v1::WorkerInfo& worker : parts_.registry->List()) {
    *response->add_workers() = std::move(worker);
  }
  return Answer("ListWorkers", absl::OkStatus());
}

// With what earlier jobs have measured of this one's layers.
absl::StatusOr<std::vector<PlanWorker>> CoordinatorServiceImpl::Measured(
    const v1::JobSpec& spec, const std::vector<v1::WorkerInfo>& workers) {
  std::vector<PlanWorker> planned = ToPlanWorkers(workers);
  if (!parts_.plan.layers) return planned;
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<StoredLayerCost> costs,
                            parts_.store->jobs().LoadLayerCosts());
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<DistinctLayer> layers, parts_.plan.layers(spec));
  const CostTable table(costs);
  for (size_t i = 0; i < workers.size(); ++i) planned[i].measured = table.Known(workers[i], layers);
  return planned;
}

absl::Status CoordinatorServiceImpl::Plan(const v1::PlanJobRequest& request,
                                          v1::PlanJobResponse* response) {
  HEADRACE_RETURN_IF_ERROR(ValidateJob(request.spec(), nullptr));
  std::vector<v1::WorkerInfo> living = parts_.registry->List();
  std::erase_if(living, [](const v1::WorkerInfo& worker) { return worker.cordoned(); });
  HEADRACE_RETURN_IF_ERROR(CheckSuited(living, request.simulate()));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<PlanWorker> workers,
                            Measured(request.spec(), SuitedWorkers(living, request.simulate())));
  absl::StatusOr<v1::Plan> plan =
      parts_.plan.train(request.spec(), nullptr, workers, Advice::kGiven);
  // For SubmitJob too few workers are a reason to wait, here they are the answer.
  if (absl::IsUnavailable(plan.status())) {
    return absl::FailedPreconditionError(plan.status().message());
  }
  if (!plan.ok()) return plan.status();
  *response->mutable_plan() = *std::move(plan);
  return absl::OkStatus();
}

grpc::Status CoordinatorServiceImpl::PlanJob(grpc::ServerContext*,
                                             const v1::PlanJobRequest* request,
                                             v1::PlanJobResponse* response) {
  return Answer("PlanJob", Plan(*request, response));
}

}  // namespace headrace
