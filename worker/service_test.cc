// A worker's service with a coordinator played by the test: assigns, starts and stops stages, and
// stops them in each phase of their life.
#include "worker/service.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"
#include "worker/pipeline/in_memory_pipeline.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocabulary = 29;
constexpr absl::Duration kPatience = absl::Seconds(60);

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
    blobs_[sha256] = blob;
    return grpc::Status::OK;
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
  bool Close(const std::string& fault) { return service_->Close(fault, absl::Now() + kPatience); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkerRegistryService::Stub> registry_;
  std::unique_ptr<v1::CoordinatorService::Stub> blobs_;
  std::unique_ptr<WorkerMetrics> metrics_;
  Reporter reporter_;
  StageDirectory directory_;
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

TEST_F(WorkerServiceTest, TwoWorkersTrainAJobOverTheirLinksAsOneDoesAlone) {
  const v1::StageAssignment alone = Job(0, 1, 3);
  ASSERT_TRUE(workers_[0]->Assign(alone).ok());
  coordinator_.AwaitReady(0);
  ASSERT_TRUE(workers_[0]->Start(alone).ok());
  const auto payload = [](const std::string& slice) {
    uint64_t header = 0;
    std::memcpy(&header, slice.data(), 8);
    return slice.substr(8 + header);
  };
  const std::string whole =
      payload(coordinator_.Get(coordinator_.AwaitFinished(0).weights().sha256()));

  v1::StageAssignment both[2] = {Job(0, 2, 3), Job(1, 2, 3)};
  for (int k = 0; k < 2; ++k) {
    both[k].set_job_id("j2");
    ASSERT_TRUE(workers_[k]->Assign(both[k]).ok());
  }
  const auto of_j2 = [](const v1::StageEvent& e) { return e.job_id() == "j2"; };
  for (int k = 0; k < 2; ++k) {
    coordinator_.Await(
        [&](const v1::StageEvent& e) { return of_j2(e) && e.has_ready() && e.stage() == k; });
  }
  for (int k = 0; k < 2; ++k) ASSERT_TRUE(workers_[k]->Start(both[k]).ok());
  std::string parts;
  for (int k = 0; k < 2; ++k) {
    const v1::StageEvent end = coordinator_.Await([&](const v1::StageEvent& e) {
      return of_j2(e) && e.stage() == k && (e.has_finished() || e.has_failed());
    });
    ASSERT_TRUE(end.has_finished()) << end.failed().reason();
    EXPECT_EQ(end.finished().weights_step(), 3);
    parts += payload(coordinator_.Get(end.finished().weights().sha256()));
  }
  EXPECT_FALSE(whole.empty());
  EXPECT_TRUE(parts == whole);
}

// A request to measure layers of `spec`, on its way to a worker.
class Profile {
 public:
  Profile(const InProcessWorker& worker, const v1::JobSpec& spec, int repeats = 1)
      : stub_(v1::StageService::NewStub(MakeChannel(worker.address(), ChannelUse::kControl))) {
    request_.set_job_id("j1");
    *request_.mutable_spec() = spec;
    request_.mutable_spec()->set_name("measured");
    request_.mutable_spec()->mutable_data()->set_text("x");
    request_.mutable_spec()->mutable_data()->set_tokenizer(v1::TOKENIZER_BYTE);
    for (int i = 0; i < repeats; ++i) request_.add_layers(1);
    request_.set_budget_ms(60'000);
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    stub_->async()->ProfileLayers(&context_, &request_, &response_,
                                  [this](const grpc::Status& status) {
                                    absl::MutexLock lock(&mu_);
                                    status_ = status;
                                    done_ = true;
                                  });
  }
  ~Profile() {
    Cancel();
    Await();
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Await() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&done_));
    return status_;
  }
  const v1::ProfileLayersResponse& response() const { return response_; }

 private:
  std::unique_ptr<v1::StageService::Stub> stub_;
  grpc::ClientContext context_;
  v1::ProfileLayersRequest request_;
  v1::ProfileLayersResponse response_;
  absl::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

TEST_F(WorkerServiceTest, MeasuresLayersUnlessAStageIsHere) {
  const v1::StageAssignment assignment = Job(0, 1, 1);
  {
    Profile profile(*workers_[0], assignment.spec());
    const grpc::Status status = profile.Await();
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(profile.response().profiles_size(), 1);
    EXPECT_GT(profile.response().profiles(0).seconds().forward_s(), 0);
  }
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  {
    Profile profile(*workers_[0], assignment.spec());
    EXPECT_EQ(profile.Await().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(profile.Await().error_message(), HasSubstr("is busy with job j1"));
  }
  workers_[0]->Stop(assignment);
  Profile profile(*workers_[0], assignment.spec());
  EXPECT_TRUE(profile.Await().ok()) << profile.Await().error_message();
}

TEST_F(WorkerServiceTest, AWorkerThatDeclaresItsSpeedDoesNotMeasure) {
  const InProcessWorker declares("w2", workers_[0]->address(), dir_, /*measures=*/false);
  Profile profile(declares, Job(0, 1, 1).spec());
  EXPECT_EQ(profile.Await().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(profile.Await().error_message(), HasSubstr("does not measure layers"));
}

// The coordinator does not wait for the pass of a layer that is under way when it cancels.
TEST_F(WorkerServiceTest, AStageMayComeWhileACancelledMeasurementIsStillEnding) {
  const v1::StageAssignment assignment = Job(0, 1, 1);
  v1::JobSpec large = assignment.spec();
  large.mutable_model()->set_n_embd(512);
  large.mutable_model()->set_n_positions(512);
  large.mutable_training()->set_sequence_length(512);
  Profile profile(*workers_[0], large, 16);
  Profile second(*workers_[0], large, 16);  // only one at a time
  grpc::Status status = second.Await();
  if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) status = profile.Await();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  profile.Cancel();
  second.Cancel();
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
}

TEST_F(WorkerServiceTest, TheEndOfTheProcessEndsAMeasurement) {
  v1::JobSpec large = Job(0, 1, 1).spec();
  large.mutable_model()->set_n_embd(256);
  large.mutable_model()->set_n_positions(256);
  large.mutable_training()->set_sequence_length(256);
  Profile profile(*workers_[0], large, 16);
  EXPECT_TRUE(workers_[0]->Close("the worker was told to stop"));
  EXPECT_FALSE(profile.Await().ok());
}

TEST_F(WorkerServiceTest, StopEndsAStageThatFetchesItsData) {
  coordinator_.Stall();
  const v1::StageAssignment assignment = Job(0, 1, 1);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  ASSERT_TRUE(coordinator_.AwaitDownload());
  const v1::FlightRecord record = StopAndReuse(assignment);
  EXPECT_THAT(record.entries(record.entries_size() - 1), HasSubstr("fetching blob"));
}

TEST_F(WorkerServiceTest, StopEndsAReadyStage) {
  const v1::StageAssignment assignment = Job(0, 1, 1);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
  StopAndReuse(assignment);
}

TEST_F(WorkerServiceTest, StopEndsAStageThatComputes) {
  const v1::StageAssignment assignment = Job(0, 1, 1'000'000);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
  ASSERT_TRUE(workers_[0]->Start(assignment).ok());
  coordinator_.Await([](const v1::StageEvent& e) { return e.has_step(); });
  StopAndReuse(assignment);
}

TEST_F(WorkerServiceTest, StopEndsAStageThatWaitsForAnother) {
  // Stage 1 takes in what stage 0 sends and never answers.
  v1::StageAssignment first = Job(0, 2, 1), second = Job(1, 2, 1);
  const StageJob silent_job = *CheckAssignment(second, {int64_t{1} << 30, 1});
  const auto silent = *StageEquipment::Create(&silent_job);
  StageDirectory directory;
  GrpcStageService service(&directory);
  const std::string address = absl::StrCat("unix:", dir_ / "silent");
  grpc::ServerBuilder builder;
  int port = 0;
  ASSERT_TRUE(AddListener(&builder, address, &port).ok());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  directory.Enter({"j1", 1, 1, 2}, silent->inbox());

  first.mutable_peers(1)->set_address(address);
  ASSERT_TRUE(workers_[0]->Assign(first).ok());
  coordinator_.AwaitReady(0);
  ASSERT_TRUE(workers_[0]->Start(first).ok());
  Tag tag;
  tag.kind = v1::MESSAGE_KIND_ACTIVATION;
  tag.step = 1;
  tag.chunk = 1;
  tag.micro_batch = 1;
  ASSERT_TRUE(silent->inbox()->Take(tag, absl::Now() + kPatience).ok());
  // Both activations have come: nothing is left to stage 0 but to wait for a gradient.
  const v1::FlightRecord record = StopAndReuse(first);
  EXPECT_THAT(
      record.entries(record.entries_size() - 1),
      ::testing::AnyOf(HasSubstr("sending the activation to stage 1"), HasSubstr("recompute"),
                       HasSubstr("waiting for the gradient from stage 1 (worker w1)")));
  directory.Leave("j1", 1);
  server->Shutdown(std::chrono::system_clock::now());
}

// A worker that answered OK after 800 ms whatever had become of the stage was given the next job
// and refused it.
TEST_F(WorkerServiceTest, AStageThatCannotEndInTimeKeepsTheWorkerBusyUntilItHas) {
  // Reading a FIFO that nobody writes to cannot be interrupted: a disk that hangs.
  const std::string hung = Sha256Hex("hung"), next = Sha256Hex("not weights");
  const std::string blobs = dir_ / "w0-data/blobs/";
  ASSERT_TRUE(MakeDirectories(blobs).ok());
  ASSERT_EQ(mkfifo((blobs + hung).c_str(), 0600), 0);
  coordinator_.Put(next, "not weights");
  v1::StageAssignment assignment = Job(0, 1, 1);
  for (const std::string& sha256 : {hung, next}) {
    v1::WeightsSlice* slice = assignment.add_weights();
    slice->set_sha256(sha256);
    slice->set_size_bytes(11);
    slice->set_end_layer(4);
  }
  v1::StopStageResponse stopped;
  const absl::Time deadline = absl::Now() + kPatience;
  do {  // again, if Stop came before the stage had gone from fetching to loading
    assignment.set_generation(assignment.generation() + 1);
    ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
    while (access((blobs + next).c_str(), F_OK) != 0) ASSERT_LT(absl::Now(), deadline);
    stopped = workers_[0]->StopStage(assignment);
    std::remove((blobs + next).c_str());
  } while (!stopped.busy() && absl::Now() < deadline);
  ASSERT_TRUE(stopped.busy());

  const v1::HeartbeatRequest beat = workers_[0]->Heartbeat();
  EXPECT_EQ(beat.job_id(), "j1");
  EXPECT_GT(beat.number(), stopped.last_heartbeat());
  v1::StageAssignment other = Job(0, 1, 1);
  other.set_job_id("j2");
  EXPECT_TRUE(workers_[0]->StopStage(other).busy()) << "whichever job is stopped";
  EXPECT_EQ(workers_[0]->Assign(other).error_code(), grpc::StatusCode::FAILED_PRECONDITION);

  // One that comes while the stage is just ending waits for it.
  grpc::Status assigned;
  std::thread assign([&] { assigned = workers_[0]->Assign(other); });
  close(open((blobs + hung).c_str(), O_WRONLY | O_CLOEXEC));
  assign.join();
  EXPECT_TRUE(assigned.ok()) << assigned.error_message();
  EXPECT_EQ(workers_[0]->Current(), "j2");
  EXPECT_TRUE(workers_[0]->StopStage(assignment).busy()) << "with another job";
  EXPECT_FALSE(workers_[0]->StopStage(other).busy());
}

TEST_F(WorkerServiceTest, AWorkerToldToStopSaysSoBlamesNobodyAndTakesNoOtherJob) {
  const v1::StageAssignment assignment = Job(0, 1, 1'000'000);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
  ASSERT_TRUE(workers_[0]->Start(assignment).ok());
  coordinator_.Await([](const v1::StageEvent& e) { return e.has_step(); });
  ASSERT_TRUE(workers_[0]->Close("the worker was told to stop"));
  const v1::StageFailed failed =
      coordinator_.Await([](const v1::StageEvent& e) { return e.has_failed(); }).failed();
  EXPECT_THAT(failed.reason(), HasSubstr("worker w0, stage 0, step "));
  EXPECT_THAT(failed.reason(), HasSubstr(": the worker was told to stop"));
  EXPECT_EQ(failed.blamed_worker(), "");
  EXPECT_TRUE(workers_[0]->StopStage(assignment).busy()) << "so that nothing is placed here";
  v1::StageAssignment other = assignment;
  other.set_job_id("j2");
  EXPECT_EQ(workers_[0]->Assign(other).error_message(), "worker w0 is ending");
}

TEST_F(WorkerServiceTest, ABusyWorkerRefusesAnotherJob) {
  const v1::StageAssignment assignment = Job(0, 1, 1);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  v1::StageAssignment other = assignment;
  other.set_job_id("j2");
  const grpc::Status status = workers_[0]->Assign(other);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "worker w0 is busy with job j1");
  EXPECT_TRUE(workers_[0]->Assign(assignment).ok()) << "the same assignment again is fine";
}

TEST_F(WorkerServiceTest, StoppingWhatIsNotThereIsFine) {
  EXPECT_EQ(workers_[0]->Stop(Job(0, 1, 1)).entries_size(), 0);
}

TEST_F(WorkerServiceTest, AnOlderGenerationStopsNothing) {
  v1::StageAssignment assignment = Job(0, 1, 1);
  assignment.set_generation(5);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  v1::StageAssignment older = assignment;
  older.set_generation(4);
  workers_[0]->Stop(older);
  EXPECT_EQ(workers_[0]->Current(), "j1");
}

TEST_F(WorkerServiceTest, BadAssignmentsAreRefusedWithTheirReason) {
  struct Case {
    const char* reason;
    std::function<void(v1::StageAssignment*)> spoil;
  };
  const Case cases[] = {
      {"no job id", [](auto* a) { a->clear_job_id(); }},
      {"n_embd", [](auto* a) { a->mutable_spec()->mutable_model()->set_n_embd(-1); }},
      {"stage is 7", [](auto* a) { a->set_stage(7); }},
      {"peers", [](auto* a) { a->clear_peers(); }},
      {"stage 0 has layers 0 to 9",
       [](auto* a) { a->mutable_plan()->mutable_stage(0)->set_end_layer(9); }},
      {"stages", [](auto* a) { a->clear_plan(); }},
      {"0X0", [](auto* a) { a->mutable_plan()->mutable_stage(0)->set_actions("0X0"); }},
      {"training.micro_batches",
       [](auto* a) { a->mutable_spec()->mutable_training()->set_micro_batches(0); }},
      {"sequence_length",
       [](auto* a) { a->mutable_spec()->mutable_training()->set_sequence_length(13); }},
      {"dataset", [](auto* a) { a->mutable_dataset()->set_sha256("../../etc/passwd"); }},
      {"weights", [](auto* a) { a->add_weights()->set_sha256("x"); }},
      {"boundary_dtype",
       [](auto* a) {
         a->mutable_spec()->mutable_pipeline()->set_boundary_dtype(
             static_cast<v1::BoundaryDtype>(9));
       }},
      {"credits", [](auto* a) { a->mutable_spec()->mutable_pipeline()->set_credits(-3); }},
      {"is for worker w9", [](auto* a) { a->mutable_peers(0)->set_worker("w9"); }},
  };
  for (const Case& c : cases) {
    v1::StageAssignment assignment = Job(0, 1, 1);
    c.spoil(&assignment);
    const grpc::Status status = workers_[0]->Assign(assignment);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.reason;
    EXPECT_THAT(status.error_message(), HasSubstr(c.reason));
  }
}

TEST_F(WorkerServiceTest, Bf16IsRefusedWhereTheCpuHasItNot) {
  v1::StageAssignment assignment = Job(0, 1, 1);
  assignment.mutable_spec()->mutable_training()->set_precision(v1::PRECISION_BF16);
  const grpc::Status status = workers_[0]->Assign(assignment);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("the CPU of worker w0"));
  EXPECT_THAT(status.error_message(), HasSubstr("training.bf16_emulate: true"));
}

TEST_F(WorkerServiceTest, AStageThatDoesNotFitIsRefusedNamingItsBytes) {
  v1::StageAssignment assignment = Job(0, 1, 1);
  assignment.mutable_spec()->mutable_model()->set_n_embd(1 << 14);
  const grpc::Status status = workers_[0]->Assign(assignment);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("stage 0 needs"));
  EXPECT_THAT(status.error_message(), HasSubstr("worker w0 has 1.0 GiB"));
}

}  // namespace
}  // namespace headrace
