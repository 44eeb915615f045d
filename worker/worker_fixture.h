// For tests: two workers in this process, as main.cc puts them together, with a coordinator played
// by the test.
#pragma once

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/sha256.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"
#include "worker/checkpoint/slice_store.h"
#include "worker/pipeline/in_memory_pipeline.h"
#include "worker/service.h"

namespace headrace {

// gRPC's library stays: when its last object goes, its own threads may poll for 10 s more.
inline const bool kGrpcStays = (grpc_init(), true);

inline constexpr int64_t kVocabulary = 29;
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Blobs and events.
class FakeCoordinator final : public v1::CoordinatorService::Service,
                              public v1::WorkerRegistryService::Service {
 public:
  grpc::Status ReportEvents(grpc::ServerContext*, const v1::ReportEventsRequest* request,
                            v1::ReportEventsResponse*) override {
    absl::MutexLock lock(&mu_);
    events_.insert(events_.end(), request->events().begin(), request->events().end());
    return grpc::Status::OK;
  }

  grpc::Status StatBlob(grpc::ServerContext*, const v1::StatBlobRequest* request,
                        v1::StatBlobResponse* response) override {
    absl::MutexLock lock(&mu_);
    response->set_complete(blobs_.contains(request->sha256()));
    return grpc::Status::OK;
  }

  grpc::Status DownloadBlob(grpc::ServerContext* context, const v1::DownloadBlobRequest* request,
                            grpc::ServerWriter<v1::DownloadBlobResponse>* writer) override {
    std::string blob;
    {
      absl::MutexLock lock(&mu_);
      downloading_ = true;
      const auto go = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return !stalled_ || context->IsCancelled();
      };
      // The context's state is not guarded by mu_, so look again now and then.
      while (!mu_.AwaitWithTimeout(absl::Condition(&go), absl::Milliseconds(20))) {
      }
      blob = blobs_[request->sha256()];
    }
    v1::DownloadBlobResponse response;
    response.set_size_bytes(static_cast<int64_t>(blob.size()));
    response.set_data(blob.substr(request->offset()));
    writer->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status UploadBlob(grpc::ServerContext*, grpc::ServerReader<v1::UploadBlobRequest>* reader,
                          v1::UploadBlobResponse*) override {
    v1::UploadBlobRequest request;
    std::string sha256, blob;
    while (reader->Read(&request)) {
      if (!request.sha256().empty()) sha256 = request.sha256();
      blob += request.data();
    }
    absl::MutexLock lock(&mu_);
    if (full_for_ > 0) {
      --full_for_;
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the disk is full"};
    }
    blobs_[sha256] = blob;
    return grpc::Status::OK;
  }

  // Has no room for so many uploads.
  void BeFullFor(int uploads) {
    absl::MutexLock lock(&mu_);
    full_for_ = uploads;
  }
  void Put(const std::string& sha256, const std::string& blob) {
    absl::MutexLock lock(&mu_);
    blobs_[sha256] = blob;
  }
  std::string Get(const std::string& sha256) {
    absl::MutexLock lock(&mu_);
    return blobs_[sha256];
  }
  void Stall() {
    absl::MutexLock lock(&mu_);
    stalled_ = true;
  }
  bool AwaitDownload() {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&downloading_), kPatience);
  }
  // The first event of this job that `wanted` accepts.
  v1::StageEvent Await(const std::function<bool(const v1::StageEvent&)>& wanted) {
    absl::MutexLock lock(&mu_);
    v1::StageEvent found;
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      for (const v1::StageEvent& event : events_) {
        if (!wanted(event)) continue;
        found = event;
        return true;
      }
      return false;
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), kPatience)) << "no such event came";
    return found;
  }
  void AwaitReady(int stage) {
    Await([=](const v1::StageEvent& e) { return e.has_ready() && e.stage() == stage; });
  }
  v1::StageFinished AwaitFinished(int stage) {
    return Await([=](const v1::StageEvent& e) { return e.has_finished() && e.stage() == stage; })
        .finished();
  }

 private:
  absl::Mutex mu_;
  std::vector<v1::StageEvent> events_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> blobs_ ABSL_GUARDED_BY(mu_);
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  int full_for_ ABSL_GUARDED_BY(mu_) = 0;
  bool downloading_ ABSL_GUARDED_BY(mu_) = false;
};

// What main.cc puts together, without flags and heartbeats.
class InProcessWorker {
 public:
  InProcessWorker(const std::string& name, const std::string& coordinator, const TempDir& dir,
                  bool measures = true)
      : channel_(MakeChannel(coordinator, ChannelUse::kControl)),
        registry_(v1::WorkerRegistryService::NewStub(channel_)),
        blobs_(v1::CoordinatorService::NewStub(channel_)),
        metrics_(*WorkerMetrics::Create("")),
        reporter_(registry_.get(), name, "instance"),
        address_(absl::StrCat("unix:", dir / name)) {
    WorkerContext context;
    context.limits = {int64_t{1} << 30, 1};
    context.data_dir = dir / (name + "-data");
    context.coordinator = blobs_.get();
    context.reporter = &reporter_;
    context.directory = &directory_;
    context.metrics = metrics_.get();
    slices_ = *SliceStore::Open(context.data_dir + "/snapshots");
    context.slices = slices_.get();
    if (measures) context.profiler = &profiler_;
    service_ = std::make_unique<WorkerService>(name, context);
    grpc::ServerBuilder builder;
    int port = 0;
    EXPECT_TRUE(AddListener(&builder, address_, &port).ok());
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
  }
  ~InProcessWorker() {
    service_->Close("", absl::Now() + kPatience);
    server_->Shutdown(std::chrono::system_clock::now());
  }

  const std::string& address() const { return address_; }

  grpc::Status Assign(const v1::StageAssignment& assignment) {
    v1::AssignStageRequest request;
    *request.mutable_assignment() = assignment;
    v1::AssignStageResponse response;
    return service_->AssignStage(nullptr, &request, &response);
  }
  grpc::Status Start(const v1::StageAssignment& assignment) {
    v1::StartStageRequest request;
    request.set_job_id(assignment.job_id());
    request.set_generation(assignment.generation());
    v1::StartStageResponse response;
    return service_->StartStage(nullptr, &request, &response);
  }
  grpc::Status Control(const v1::StageAssignment& assignment, bool leave = false) {
    v1::ControlStageRequest request;
    request.set_job_id(assignment.job_id());
    request.set_generation(assignment.generation());
    request.set_checkpoint(true);
    request.set_leave(leave);
    v1::ControlStageResponse response;
    return service_->ControlStage(nullptr, &request, &response);
  }
  v1::FlightRecord Stop(const v1::StageAssignment& assignment) {
    return StopStage(assignment).flight_record();
  }
  v1::StopStageResponse StopStage(const v1::StageAssignment& assignment) {
    v1::StopStageRequest request;
    request.set_job_id(assignment.job_id());
    request.set_generation(assignment.generation());
    v1::StopStageResponse response;
    EXPECT_TRUE(service_->StopStage(nullptr, &request, &response).ok());
    return response;
  }
  v1::HeartbeatRequest Heartbeat() {
    v1::HeartbeatRequest request;
    service_->Describe(&request);
    return request;
  }
  std::string Current() { return Heartbeat().job_id(); }
  v1::RegisterWorkerRequest Registration() {
    v1::RegisterWorkerRequest request;
    service_->Describe(&request);
    return request;
  }
  WorkerService* service() { return service_.get(); }
  SliceStore* slices() { return slices_.get(); }
  bool Close(const std::string& fault) { return service_->Close(fault, absl::Now() + kPatience); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkerRegistryService::Stub> registry_;
  std::unique_ptr<v1::CoordinatorService::Stub> blobs_;
  std::unique_ptr<WorkerMetrics> metrics_;
  Reporter reporter_;
  StageDirectory directory_;
  std::unique_ptr<SliceStore> slices_;
  LayerProfiler profiler_{{int64_t{1} << 30, 1}, 0};
  const std::string address_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<grpc::Server> server_;
};

class WorkerServiceTest : public ::testing::Test {
 protected:
  WorkerServiceTest() {
    const std::string address = absl::StrCat("unix:", dir_ / "coordinator");
    grpc::ServerBuilder builder;
    int port = 0;
    EXPECT_TRUE(AddListener(&builder, address, &port).ok());
    builder.RegisterService(static_cast<v1::CoordinatorService::Service*>(&coordinator_));
    builder.RegisterService(static_cast<v1::WorkerRegistryService::Service*>(&coordinator_));
    server_ = builder.BuildAndStart();
    for (int k = 0; k < 2; ++k) {
      workers_.push_back(std::make_unique<InProcessWorker>(absl::StrCat("w", k), address, dir_));
    }
    testing::WriteTokens(dir_ / "tokens", 600, kVocabulary);
    std::ifstream file(dir_ / "tokens", std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    dataset_sha256_ = Sha256Hex(bytes.str());
    coordinator_.Put(dataset_sha256_, bytes.str());
  }
  ~WorkerServiceTest() override {
    workers_.clear();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  v1::StageAssignment Job(int stage, int num_stages, int64_t steps) {
    v1::StageAssignment assignment;
    assignment.set_job_id("j1");
    assignment.set_generation(1);
    assignment.set_stage(stage);
    v1::ModelSpec* model = assignment.mutable_spec()->mutable_model();
    model->set_family(v1::MODEL_FAMILY_GPT2);
    model->set_vocab_size(kVocabulary);
    model->set_n_layer(2);
    model->set_n_embd(16);
    model->set_n_head(2);
    model->set_n_positions(12);
    v1::TrainingSpec* training = assignment.mutable_spec()->mutable_training();
    training->set_steps(steps);
    training->set_batch_size(4);
    training->set_micro_batches(2);
    training->set_sequence_length(8);
    training->set_seed(3);
    training->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
    training->mutable_optimizer()->set_learning_rate(0.01);
    assignment.mutable_dataset()->set_sha256(dataset_sha256_);
    assignment.mutable_dataset()->set_num_tokens(600);
    assignment.mutable_dataset()->set_token_bytes(1);
    assignment.set_wait_timeout_ms(60'000);
    testing::FillPlan(&assignment, 4, num_stages, true, [](int) { return true; });
    for (int k = 0; k < num_stages; ++k) {
      assignment.mutable_peers(k)->set_address(workers_[k]->address());
    }
    return assignment;
  }

  // Stops the stage, which must be gone in a second, and gives a new job to the same worker.
  v1::FlightRecord StopAndReuse(const v1::StageAssignment& assignment) {
    InProcessWorker& worker = *workers_[assignment.stage()];
    const absl::Time start = absl::Now();
    v1::FlightRecord record = worker.Stop(assignment);
    EXPECT_LT(absl::Now() - start, absl::Seconds(1));
    EXPECT_EQ(worker.Current(), "");
    v1::StageAssignment next = assignment;
    next.set_generation(2);
    const grpc::Status status = worker.Assign(next);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return record;
  }

  const TempDir dir_;
  FakeCoordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<InProcessWorker>> workers_;
  std::string dataset_sha256_;
};

}  // namespace headrace
