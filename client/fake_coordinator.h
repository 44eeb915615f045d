// A coordinator for tests of the client: answers from what the test put in, within this process.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/channel.h"
#include "headrace/v1/cluster.grpc.pb.h"

namespace headrace {

// Thread-safe. Serves on a Unix socket until it is destroyed.
class FakeCoordinator : public v1::CoordinatorService::Service {
 public:
  explicit FakeCoordinator(const std::string& socket) : address_("unix:" + socket) {
    grpc::ServerBuilder builder;
    int port = 0;
    if (AddListener(&builder, address_, &port).ok()) {
      builder.RegisterService(this);
      server_ = builder.BuildAndStart();
    }
  }
  ~FakeCoordinator() override {
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }

  const std::string& address() const { return address_; }

  void AddJob(v1::Job job) {
    absl::MutexLock lock(&mu_);
    const std::string id = job.id();
    jobs_[id] = std::move(job);
  }
  // Watching ends without the job's end this many times before it goes on.
  void BreakWatches(int times) {
    absl::MutexLock lock(&mu_);
    breaks_ = times;
  }
  // Hashes a submitted job reports: by its number of stages.
  void SetHashes(int64_t stages, v1::TensorHashes hashes) {
    absl::MutexLock lock(&mu_);
    hashes_[stages] = std::move(hashes);
  }
  // What the only job with a trace did; in chunks numbered from 1.
  void SetTrace(std::vector<v1::StageTrace> chunks) {
    absl::MutexLock lock(&mu_);
    trace_ = std::move(chunks);
  }
  // What becomes of a job once GetJob has been asked for it as often: what it is then.
  void ChangeJob(int after_looks, v1::Job job) {
    absl::MutexLock lock(&mu_);
    looks_ = after_looks;
    changed_ = std::move(job);
  }
  // Of the worker with this name, likewise once ListWorkers has been asked as often; served by j4
  // before.
  void FreeWorker(int after_looks, std::string name) {
    absl::MutexLock lock(&mu_);
    looks_ = after_looks;
    busy_worker_ = std::move(name);
  }
  // What was asked for, oldest first: "checkpoint j4", "cordon w1", "drain w1".
  std::vector<std::string> asked() {
    absl::MutexLock lock(&mu_);
    return asked_;
  }
  void SetWorkers(int num_workers) {
    absl::MutexLock lock(&mu_);
    num_workers_ = num_workers;
  }
  std::vector<v1::SubmitJobRequest> submitted() {
    absl::MutexLock lock(&mu_);
    return submitted_;
  }
  std::vector<std::string> cancelled() {
    absl::MutexLock lock(&mu_);
    return cancelled_;
  }
  std::vector<v1::WatchJobRequest> watches() {
    absl::MutexLock lock(&mu_);
    return watches_;
  }

  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override {
    absl::MutexLock lock(&mu_);
    if (changed_.has_value() && looks_-- == 0) {
      jobs_[changed_->id()] = *changed_;
      changed_.reset();
    }
    const v1::Job* job = Find(request->job());
    if (job == nullptr) return Unknown(request->job());
    *response->mutable_job() = *job;
    response->mutable_job()->clear_steps();
    return grpc::Status::OK;
  }

  // Pages of two.
  grpc::Status ListJobSteps(grpc::ServerContext*, const v1::ListJobStepsRequest* request,
                            v1::ListJobStepsResponse* response) override {
    absl::MutexLock lock(&mu_);
    const v1::Job* job = Find(request->job());
    if (job == nullptr) return Unknown(request->job());
    for (const v1::StepResult& step : job->steps()) {
      if (step.step() > request->after_step() && response->steps_size() < 2) {
        *response->add_steps() = step;
      }
    }
    return grpc::Status::OK;
  }

  // Pages of one.
  grpc::Status ListJobTraces(grpc::ServerContext*, const v1::ListJobTracesRequest* request,
                             v1::ListJobTracesResponse* response) override {
    absl::MutexLock lock(&mu_);
    if (trace_.empty()) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "job j4 has done no step yet"};
    }
    response->set_first_step(std::max<int64_t>(1, request->first_step()));
    response->set_last_step(std::max<int64_t>(1, request->last_step()));
    for (const v1::StageTrace& chunk : trace_) {
      if (chunk.number() == request->after() + 1) *response->add_traces() = chunk;
    }
    return grpc::Status::OK;
  }

  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* response) override {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, job] : jobs_) *response->add_jobs() = job;
    return grpc::Status::OK;
  }

  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override {
    absl::MutexLock lock(&mu_);
    for (int i = 0; i < num_workers_; ++i) response->add_workers()->set_alive(true);
    if (!busy_worker_.empty()) {
      v1::WorkerInfo* worker = response->add_workers();
      worker->set_name(busy_worker_);
      worker->set_alive(true);
      if (looks_-- > 0) worker->set_job_id("j4");
    }
    return grpc::Status::OK;
  }

  grpc::Status CheckpointJob(grpc::ServerContext*, const v1::CheckpointJobRequest* request,
                             v1::CheckpointJobResponse* response) override {
    absl::MutexLock lock(&mu_);
    const v1::Job* job = Find(request->job());
    if (job == nullptr) return Unknown(request->job());
    asked_.push_back("checkpoint " + job->id());
    response->set_job_id(job->id());
    response->set_after_step(job->step());
    return grpc::Status::OK;
  }

  grpc::Status PauseJob(grpc::ServerContext*, const v1::PauseJobRequest* request,
                        v1::PauseJobResponse* response) override {
    absl::MutexLock lock(&mu_);
    const v1::Job* job = Find(request->job());
    if (job == nullptr) return Unknown(request->job());
    asked_.push_back("pause " + job->id());
    response->set_job_id(job->id());
    return grpc::Status::OK;
  }

  grpc::Status ResumeJob(grpc::ServerContext*, const v1::ResumeJobRequest* request,
                         v1::ResumeJobResponse* response) override {
    absl::MutexLock lock(&mu_);
    const v1::Job* job = Find(request->job());
    if (job == nullptr) return Unknown(request->job());
    if (job->state() == v1::JOB_STATE_RUNNING) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "job " + job->id() + " is running"};
    }
    asked_.push_back("resume " + job->id());
    response->set_job_id(job->id());
    response->set_from_step(job->step());
    return grpc::Status::OK;
  }

  grpc::Status CordonWorker(grpc::ServerContext*, const v1::CordonWorkerRequest* request,
                            v1::CordonWorkerResponse* response) override {
    absl::MutexLock lock(&mu_);
    if (request->worker()[0] != 'w') {
      return {grpc::StatusCode::NOT_FOUND, "no living worker is called " + request->worker()};
    }
    const std::string verb = request->drain()      ? "drain "
                             : request->cordoned() ? "cordon "
                                                   : "uncordon ";
    asked_.push_back(verb + request->worker());
    if (request->drain() && request->worker() == busy_worker_) response->set_job_id("j4");
    return grpc::Status::OK;
  }

  // Every submitted job is done at once.
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override {
    absl::MutexLock lock(&mu_);
    submitted_.push_back(*request);
    v1::Job job;
    job.set_id("s" + std::to_string(submitted_.size()));
    job.set_name(request->spec().name());
    job.set_state(v1::JOB_STATE_DONE);
    *job.mutable_spec() = request->spec();
    jobs_[job.id()] = job;
    response->set_job_id(job.id());
    return grpc::Status::OK;
  }

  // The steps and events not yet seen, then the job. A job that has not ended is watched until the
  // client goes.
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    v1::Job job;
    bool breaks = false;
    v1::TensorHashes hashes;
    {
      absl::MutexLock lock(&mu_);
      watches_.push_back(*request);
      const v1::Job* found = Find(request->job());
      if (found == nullptr) return Unknown(request->job());
      job = *found;
      breaks = breaks_-- > 0;
      if (auto it = hashes_.find(job.spec().pipeline().stages()); it != hashes_.end()) {
        hashes = it->second;
      }
    }
    v1::WatchJobResponse update;
    int sent = 0;
    for (const v1::StepResult& step : job.steps()) {
      if (step.step() <= request->after_step()) continue;
      *update.mutable_step() = step;
      writer->Write(update);
      if (breaks && ++sent == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken");
    }
    if (hashes.names_size() > 0) {
      *update.mutable_tensor_hashes() = hashes;
      writer->Write(update);
    }
    *update.mutable_job() = job;
    update.mutable_job()->clear_steps();
    writer->Write(update);
    const bool ended = job.state() == v1::JOB_STATE_DONE || job.state() == v1::JOB_STATE_FAILED ||
                       job.state() == v1::JOB_STATE_CANCELLED;
    while (!ended && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::OK;
  }

  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                         v1::CancelJobResponse*) override {
    absl::MutexLock lock(&mu_);
    if (Find(request->job()) == nullptr) return Unknown(request->job());
    cancelled_.push_back(request->job());
    return grpc::Status::OK;
  }

  grpc::Status PlanJob(grpc::ServerContext*, const v1::PlanJobRequest*,
                       v1::PlanJobResponse*) override {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "stage 0 lacks 5 bytes");
  }

  // The prompt's tokens come back in capitals.
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    for (int64_t token : request->prompt()) {
      v1::GenerateResponse response;
      response.set_token(token >= 'a' && token <= 'z' ? token - 32 : token);
      writer->Write(response);
    }
    return grpc::Status::OK;
  }

  grpc::Status StatBlob(grpc::ServerContext*, const v1::StatBlobRequest*,
                        v1::StatBlobResponse* response) override {
    response->set_complete(true);
    return grpc::Status::OK;
  }

 private:
  const v1::Job* Find(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const auto& [id, job] : jobs_) {
      if (id == name || job.name() == name) return &job;
    }
    return nullptr;
  }
  static grpc::Status Unknown(const std::string& name) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job " + name);
  }

  const std::string address_;
  absl::Mutex mu_;
  std::map<std::string, v1::Job> jobs_ ABSL_GUARDED_BY(mu_);
  int num_workers_ ABSL_GUARDED_BY(mu_) = 4;
  std::vector<v1::StageTrace> trace_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, v1::TensorHashes> hashes_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::SubmitJobRequest> submitted_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::WatchJobRequest> watches_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> cancelled_ ABSL_GUARDED_BY(mu_);
  int breaks_ ABSL_GUARDED_BY(mu_) = 0;
  int looks_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<v1::Job> changed_ ABSL_GUARDED_BY(mu_);
  std::string busy_worker_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> asked_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace headrace
