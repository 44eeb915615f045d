// A whole coordinator in this process, real RPCs, workers that compute nothing (fake_worker.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/blob_transfer.h"
#include "common/channel.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/sha256.h"
#include "common/token_file.h"
#include "coordinator/coordinator.h"
#include "coordinator/fake_worker.h"
#include "coordinator/store/store.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class CoordinatorServiceTest : public ::testing::Test {
 protected:
  CoordinatorServiceTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/coordinator_", info->name());
    std::filesystem::remove_all(folder_);
    Start();
    UploadData();
  }
  ~CoordinatorServiceTest() override {
    workers_.clear();
    coordinator_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    CoordinatorOptions options;
    options.listen = "127.0.0.1:0";
    options.data_dir = folder_;
    auto started = Coordinator::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
    stub_ =
        v1::CoordinatorService::NewStub(MakeChannel(coordinator_->address(), ChannelUse::kControl));
  }

  FakeWorker* AddWorker(const std::string& name, FakeWorker::Behaviour behaviour = {}) {
    workers_.push_back(
        std::make_unique<FakeWorker>(coordinator_->address(), name, std::move(behaviour)));
    return workers_.back().get();
  }

  void UploadData() {
    const std::string content =
        TokenHeader(1, 4096, 255) + std::string(4095, 'a') + std::string(1, '\xff');
    dataset_.set_sha256(Sha256Hex(content));
    dataset_.set_num_tokens(4096);
    dataset_.set_max_token(255);
    dataset_.set_token_bytes(1);
    const std::string path = folder_ + "/data.tokens";
    ASSERT_TRUE(WriteFileAtomically(path, content).ok());
    ASSERT_TRUE(UploadBlob(stub_.get(), path, dataset_.sha256(), absl::Now() + kPatience).ok());
  }

  static v1::JobSpec Spec(int64_t stages) {
    v1::JobSpec spec;
    spec.set_name("bible");
    v1::ModelSpec* model = spec.mutable_model();
    model->set_family(v1::MODEL_FAMILY_GPT2);
    model->set_vocab_size(256);
    model->set_n_layer(4);
    model->set_n_embd(16);
    model->set_n_head(2);
    model->set_n_positions(16);
    spec.mutable_data()->set_text("text.txt");
    spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BYTE);
    v1::TrainingSpec* training = spec.mutable_training();
    training->set_steps(3);
    training->set_batch_size(4);
    training->set_micro_batches(2);
    training->set_sequence_length(16);
    training->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
    training->mutable_optimizer()->set_learning_rate(1e-3);
    spec.mutable_pipeline()->set_stages(stages);
    return spec;
  }

  absl::StatusOr<std::string> Submit(const v1::JobSpec& spec, bool hashes = false) {
    grpc::ClientContext context;
    Deadline(&context);
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    *request.mutable_dataset() = dataset_;
    request.mutable_options()->set_hash_tensors(hashes);
    v1::SubmitJobResponse response;
    const grpc::Status status = stub_->SubmitJob(&context, request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response.job_id();
  }

  v1::Job Get(const std::string& id) {
    grpc::ClientContext context;
    Deadline(&context);
    v1::GetJobRequest request;
    request.set_job(id);
    v1::GetJobResponse response;
    const grpc::Status status = stub_->GetJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.job().steps_size(), 0);
    v1::Job job = response.job();
    for (const v1::StepResult& step : Steps(id)) *job.add_steps() = step;
    return job;
  }

  // Page by page.
  std::vector<v1::StepResult> Steps(const std::string& id, int* pages = nullptr) {
    std::vector<v1::StepResult> steps;
    while (true) {
      grpc::ClientContext context;
      Deadline(&context);
      v1::ListJobStepsRequest request;
      request.set_job(id);
      if (!steps.empty()) request.set_after_step(steps.back().step());
      v1::ListJobStepsResponse response;
      const grpc::Status status = stub_->ListJobSteps(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      if (!status.ok() || response.steps().empty()) return steps;
      EXPECT_LT(response.ByteSizeLong(), 2u << 20);
      steps.insert(steps.end(), response.steps().begin(), response.steps().end());
      if (pages != nullptr) ++*pages;
    }
  }

  absl::Status Cancel(const std::string& id) {
    grpc::ClientContext context;
    Deadline(&context);
    v1::CancelJobRequest request;
    request.set_job(id);
    v1::CancelJobResponse response;
    return FromGrpc(stub_->CancelJob(&context, request, &response));
  }

  // Reads the whole stream; the job has ended when this returns.
  std::vector<v1::WatchJobResponse> Watch(const std::string& id, int64_t after_step = 0,
                                          int64_t after_event = 0) {
    grpc::ClientContext context;
    Deadline(&context);
    v1::WatchJobRequest request;
    request.set_job(id);
    request.set_after_step(after_step);
    request.set_after_event(after_event);
    const auto reader = stub_->WatchJob(&context, request);
    std::vector<v1::WatchJobResponse> updates;
    v1::WatchJobResponse update;
    while (reader->Read(&update)) updates.push_back(update);
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return updates;
  }

  v1::Job AwaitEnd(const std::string& id) {
    Watch(id);
    return Get(id);
  }

  void AwaitStep(const std::string& id, int64_t step) {
    grpc::ClientContext context;
    Deadline(&context);
    v1::WatchJobRequest request;
    request.set_job(id);
    request.set_after_step(step - 1);
    const auto reader = stub_->WatchJob(&context, request);
    v1::WatchJobResponse update;
    bool reached = false;
    while (!reached && reader->Read(&update)) reached = update.has_step();
    context.TryCancel();
    reader->Finish();
    ASSERT_TRUE(reached) << id << " did not reach step " << step;
  }

  absl::StatusOr<std::vector<int64_t>> Generate(const std::string& job, int64_t max_tokens) {
    grpc::ClientContext context;
    Deadline(&context);
    v1::GenerateRequest request;
    request.set_job(job);
    request.add_prompt(65);
    request.set_max_tokens(max_tokens);
    const auto reader = stub_->Generate(&context, request);
    std::vector<int64_t> tokens;
    v1::GenerateResponse response;
    while (reader->Read(&response)) tokens.push_back(response.token());
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return FromGrpc(status);
    return tokens;
  }

  static void Deadline(grpc::ClientContext* context) {
    context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  }

  std::string folder_;
  v1::Dataset dataset_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
};

// More steps than a message may carry: GetJob once returned them all and was refused by clients.
TEST_F(CoordinatorServiceTest, AJobOfManyStepsIsListedInPages) {
  constexpr int64_t kSteps = 2000;
  coordinator_.reset();
  {
    const auto store = Store::Open(folder_);
    ASSERT_TRUE(store.ok()) << store.status();
    JobStore& jobs = (*store)->jobs();
    v1::Job job;
    job.set_id("j1");
    job.set_name("long");
    job.set_state(v1::JOB_STATE_DONE);
    job.set_step(kSteps);
    ASSERT_TRUE(jobs.Begin().ok());
    ASSERT_TRUE(jobs.SaveJob(job, v1::JobOptions()).ok());
    v1::StepResult result;
    for (int stage = 0; stage < 100; ++stage) {
      v1::StageSeconds* seconds = result.add_stage_seconds();
      seconds->set_stage(stage + 1);
      seconds->set_wall(1.5);
      seconds->set_compute(0.5);
      seconds->set_recompute(0.25);
      seconds->set_wait_receive(0.25);
      seconds->set_wait_send(0.25);
      seconds->set_optimizer(0.125);
    }
    for (int64_t step = 1; step <= kSteps; ++step) {
      result.set_step(step);
      ASSERT_TRUE(jobs.SaveStep("j1", result).ok());
    }
    ASSERT_TRUE(jobs.Commit().ok());
    EXPECT_GT(kSteps * static_cast<int64_t>(result.ByteSizeLong()), int64_t{8} << 20);
  }
  Start();
  EXPECT_EQ(Get("long").step(), kSteps);
  int pages = 0;
  const std::vector<v1::StepResult> steps = Steps("long", &pages);
  ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
  for (int64_t i = 0; i < kSteps; ++i) ASSERT_EQ(steps[i].step(), i + 1);
  EXPECT_GT(pages, 8);
}

FakeWorker::Behaviour MeasuresOn(const std::string& device) {
  FakeWorker::Behaviour behaviour;
  behaviour.measures_on = device;
  return behaviour;
}

// A job of two stages, with an embedding and a head of 15 ms a micro-batch and four blocks of 3 ms:
// FLOPs alone would cut it elsewhere.
TEST_F(CoordinatorServiceTest, MeasuresLayersOnceAndBalancesByThemEvenAfterARestart) {
  const FakeWorker* w0 = AddWorker("w0", MeasuresOn("zen"));
  const FakeWorker* w1 = AddWorker("w1", MeasuresOn("zen"));
  const auto check = [&](const std::string& id) {
    const v1::Job job = AwaitEnd(id);
    ASSERT_EQ(job.state(), v1::JOB_STATE_DONE) << job.message();
    ASSERT_EQ(job.plan().stage_size(), 2);
    EXPECT_EQ(job.plan().stage(1).first_layer(), 3);
    for (const v1::StagePlan& stage : job.plan().stage()) {
      EXPECT_EQ(stage.cost_source(), v1::COST_SOURCE_MEASURED);
      EXPECT_NEAR(stage.forward_s(), 0.007, 1e-9);
    }
  };
  const auto first = Submit(Spec(2));
  ASSERT_TRUE(first.ok()) << first.status();
  check(*first);
  EXPECT_EQ(w0->profiled() + w1->profiled(), 1);
  std::string events;
  for (const v1::WatchJobResponse& update : Watch(*first)) {
    absl::StrAppend(&events, update.event().text(), "\n");
  }
  EXPECT_THAT(events, HasSubstr("measures its layers on w0\n"));
  EXPECT_THAT(events,
              HasSubstr("measured on w0 (zen, 1 thread, ), forward + backward of a micro-batch: "
                        "layer 0: 5 + 10 ms, layer 1: 1 + 2 ms, layer 5: 5 + 10 ms\n"));
  EXPECT_THAT(events, HasSubstr("placed on w0, w1 (generation 1), balanced by measured layers"));

  const auto second = Submit(Spec(2));
  ASSERT_TRUE(second.ok()) << second.status();
  check(*second);
  EXPECT_EQ(w0->profiled() + w1->profiled(), 1);

  workers_.clear();
  coordinator_.reset();
  Start();
  w0 = AddWorker("w0", MeasuresOn("zen"));
  w1 = AddWorker("w1", MeasuresOn("zen"));
  {
    grpc::ClientContext context;
    Deadline(&context);
    v1::PlanJobRequest request;
    *request.mutable_spec() = Spec(2);
    v1::PlanJobResponse response;
    const grpc::Status status = stub_->PlanJob(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.plan().stage(0).cost_source(), v1::COST_SOURCE_MEASURED);
  }
  const auto third = Submit(Spec(2));
  ASSERT_TRUE(third.ok()) << third.status();
  check(*third);
  EXPECT_EQ(w0->profiled() + w1->profiled(), 0);
}

TEST_F(CoordinatorServiceTest, AMeasurementThatFailsLeavesTheJobToFlops) {
  FakeWorker::Behaviour behaviour = MeasuresOn("zen");
  behaviour.profile_failure = "the ruler broke";
  AddWorker("w0", behaviour);
  AddWorker("w1", behaviour);
  const auto id = Submit(Spec(2));
  ASSERT_TRUE(id.ok()) << id.status();
  const v1::Job job = AwaitEnd(*id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_DONE) << job.message();
  EXPECT_EQ(job.plan().stage(0).cost_source(), v1::COST_SOURCE_FLOPS);
}

TEST_F(CoordinatorServiceTest, CancellingAJobThatMeasuresFreesTheWorkerAtOnce) {
  FakeWorker::Behaviour stalls = MeasuresOn("zen");
  stalls.profile_stalls = true;
  FakeWorker* w0 = AddWorker("w0", stalls);
  AddWorker("w1", stalls);
  const auto id = Submit(Spec(2));
  ASSERT_TRUE(id.ok()) << id.status();
  ASSERT_TRUE(w0->AwaitProfiled(absl::Now() + kPatience));
  EXPECT_THAT(Get(*id).message(), HasSubstr("measures its layers on w0"));
  ASSERT_TRUE(Cancel(*id).ok());
  EXPECT_EQ(AwaitEnd(*id).state(), v1::JOB_STATE_CANCELLED);
  // One stage needs no measurement, but two workers: one of them is w0.
  const auto next = Submit(Spec(1)), other = Submit(Spec(1));
  ASSERT_TRUE(next.ok() && other.ok());
  EXPECT_EQ(AwaitEnd(*next).state(), v1::JOB_STATE_DONE);
  EXPECT_EQ(AwaitEnd(*other).state(), v1::JOB_STATE_DONE);
}

TEST_F(CoordinatorServiceTest, AWorkerThatDiesWhileItMeasuresHoldsNobodyUp) {
  FakeWorker::Behaviour stalls = MeasuresOn("zen");
  stalls.profile_stalls = true;
  FakeWorker* w0 = AddWorker("w0", stalls);
  AddWorker("w1");
  const auto id = Submit(Spec(0));
  ASSERT_TRUE(id.ok()) << id.status();
  ASSERT_TRUE(w0->AwaitProfiled(absl::Now() + kPatience));
  w0->Die();
  const v1::Job job = AwaitEnd(*id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_DONE) << job.message();
}

TEST_F(CoordinatorServiceTest, TrainsAJobFromSubmitToWeights) {
  AddWorker("w0");
  AddWorker("w1");
  const auto id = Submit(Spec(2), /*hashes=*/true);
  ASSERT_TRUE(id.ok()) << id.status();
  const auto updates = Watch(*id);
  const v1::Job job = Get("bible");
  ASSERT_EQ(job.state(), v1::JOB_STATE_DONE) << job.message();
  EXPECT_EQ(job.id(), *id);
  ASSERT_EQ(job.steps_size(), 3);
  EXPECT_EQ(job.steps(1).loss(), 2.5);
  EXPECT_EQ(job.steps(1).stage_seconds_size(), 2);
  EXPECT_EQ(job.steps(1).bubble(), 0.25);
  EXPECT_EQ(job.weights_size(), 2);
  EXPECT_EQ(job.weights_step(), 3);
  const float payload[] = {0, 1};
  EXPECT_EQ(job.weights_sha256(),
            Sha256Hex({reinterpret_cast<const char*>(payload), sizeof(payload)}));
  // The stream had each step, event and hash once, in order, and the end last.
  int64_t step = 0, event = 0, hashes = 0;
  for (const v1::WatchJobResponse& update : updates) {
    if (update.has_step()) {
      EXPECT_EQ(update.step().step(), ++step);
    }
    if (update.has_event()) {
      EXPECT_EQ(update.event().id(), ++event);
    }
    hashes += update.has_tensor_hashes();
  }
  EXPECT_EQ(step, 3);
  EXPECT_GE(event, 3);
  EXPECT_EQ(hashes, 6);
  EXPECT_EQ(updates.back().job().state(), v1::JOB_STATE_DONE);
  // A later watcher resumes where it was.
  for (const v1::WatchJobResponse& update : Watch(*id, 2, event)) {
    EXPECT_FALSE(update.has_event());
    if (update.has_step()) {
      EXPECT_EQ(update.step().step(), 3);
    }
  }
}

TEST_F(CoordinatorServiceTest, NamesALostWorkerWithinFiveSecondsAndFreesTheOthers) {
  AddWorker("w0", {.hold_after_step = 1});
  FakeWorker* w1 = AddWorker("w1", {.hold_after_step = 1});
  const auto id = Submit(Spec(2));
  ASSERT_TRUE(id.ok()) << id.status();
  AwaitStep(*id, 1);
  const absl::Time died = absl::Now();
  w1->Die();
  const v1::Job job = AwaitEnd(*id);
  EXPECT_LT(absl::Now() - died, absl::Seconds(5));
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(job.message(), HasSubstr("worker w1 (stage 1) lost"));
  EXPECT_THAT(job.message(), HasSubstr("the last finished step is 1"));
  EXPECT_EQ(job.flight_records_size(), 2);
  // w0 holds again: it was free for the next job at once.
  const auto next = Submit(Spec(1));
  ASSERT_TRUE(next.ok()) << next.status();
  AwaitStep(*next, 1);
}

TEST_F(CoordinatorServiceTest, BlamesTheStageThatConfessesNotItsAccuser) {
  AddWorker("w0", {.fail_at_step = 2,
                   .failure = "worker w0 (stage 0), step 2: connection to stage 1 closed",
                   .blamed = "w1"});
  AddWorker("w1", {.hold_after_step = 1,
                   .delayed_confession = "worker w1 (stage 1), step 2: arena is full"});
  const auto id = Submit(Spec(2));
  ASSERT_TRUE(id.ok()) << id.status();
  const v1::Job job = AwaitEnd(*id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.message(), "worker w1 (stage 1), step 2: arena is full");
  ASSERT_EQ(job.flight_records_size(), 2);
  EXPECT_EQ(job.flight_records(0).entries(0), "what failed");
  EXPECT_EQ(job.flight_records(1).entries(0), "w1 was stopped");
}

TEST_F(CoordinatorServiceTest, CancelsQueuedAndRunningJobs) {
  FakeWorker* w0 = AddWorker("w0", {.hold_after_step = 1});
  const auto running = Submit(Spec(1));
  const auto queued = Submit(Spec(1));
  ASSERT_TRUE(running.ok() && queued.ok());
  AwaitStep(*running, 1);
  EXPECT_EQ(Get(*queued).state(), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Get(*queued).message(), HasSubstr("busy workers"));
  EXPECT_TRUE(Cancel(*queued).ok());
  EXPECT_EQ(AwaitEnd(*queued).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(Cancel(*running).ok());
  EXPECT_EQ(AwaitEnd(*running).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(w0->stopped(), 1);
  EXPECT_EQ(Cancel(*running).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Cancel("nobody").code(), absl::StatusCode::kNotFound);
}

TEST_F(CoordinatorServiceTest, RunsTwoJobsAtOnceOnDisjointWorkers) {
  for (const char* name : {"w0", "w1", "w2", "w3"}) AddWorker(name, {.hold_after_step = 1});
  const auto first = Submit(Spec(2));
  const auto second = Submit(Spec(2));
  ASSERT_TRUE(first.ok() && second.ok());
  AwaitStep(*first, 1);
  AwaitStep(*second, 1);
  for (const auto& worker : workers_) EXPECT_EQ(worker->assigned(), 1);
}

TEST_F(CoordinatorServiceTest, KeepsTheLastGoodWeightsWhenTheLossIsNaN) {
  AddWorker("w0", {.nan_at_step = 3});
  const auto id = Submit(Spec(1));
  ASSERT_TRUE(id.ok()) << id.status();
  const v1::Job job = AwaitEnd(*id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.message(), "step 3: the loss is NaN");
  EXPECT_EQ(job.weights_step(), 2);
  EXPECT_EQ(job.weights_size(), 1);
  EXPECT_TRUE(IsSha256(job.weights_sha256()));
}

TEST_F(CoordinatorServiceTest, StreamsTokensFromTrainedWeights) {
  AddWorker("w0");
  EXPECT_EQ(Generate("bible", 3).status().code(), absl::StatusCode::kNotFound);
  const auto id = Submit(Spec(1));
  ASSERT_TRUE(id.ok()) << id.status();
  ASSERT_EQ(AwaitEnd(*id).state(), v1::JOB_STATE_DONE);
  const auto tokens = Generate("bible", 3);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, (std::vector<int64_t>{65, 66, 67}));
  EXPECT_EQ(Generate("bible", 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CoordinatorServiceTest, StopsTheStagesOfAGenerateWhoseClientLeaves) {
  FakeWorker* w0 = AddWorker("w0", {.hold_after_token = 0});
  const auto id = Submit(Spec(1));
  ASSERT_TRUE(id.ok()) << id.status();
  ASSERT_EQ(AwaitEnd(*id).state(), v1::JOB_STATE_DONE);
  ASSERT_TRUE(w0->AwaitStopped(1, absl::Now() + kPatience)) << "released after training";
  grpc::ClientContext context;
  Deadline(&context);
  v1::GenerateRequest request;
  request.set_job(*id);
  request.add_prompt(65);
  request.set_max_tokens(100);
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  reader->Finish();
  EXPECT_TRUE(w0->AwaitStopped(2, absl::Now() + kPatience));
}

TEST_F(CoordinatorServiceTest, GeneratesOnlyFromTrainedWeights) {
  AddWorker("w0", {.hold_after_step = 1});
  const auto id = Submit(Spec(1));
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(Generate(*id, 3).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorServiceTest, FailsWhatRanAndKeepsTheQueueOverARestart) {
  AddWorker("w0", {.hold_after_step = 2});
  const auto running = Submit(Spec(1));
  ASSERT_TRUE(running.ok()) << running.status();
  AwaitStep(*running, 2);
  const auto queued = Submit(Spec(1));
  ASSERT_TRUE(queued.ok()) << queued.status();
  workers_.clear();
  coordinator_.reset();
  Start();
  const v1::Job job = AwaitEnd(*running);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.message(), "coordinator restarted while the job ran (step 2)");
  EXPECT_EQ(Get(*queued).state(), v1::JOB_STATE_QUEUED);
  AddWorker("w0");
  EXPECT_EQ(AwaitEnd(*queued).state(), v1::JOB_STATE_DONE);
  const auto third = Submit(Spec(1));
  EXPECT_EQ(*third, "j3") << "numbers go on";
}

TEST_F(CoordinatorServiceTest, RefusesWhatCannotRun) {
  AddWorker("w0");
  v1::JobSpec wrong = Spec(1);
  wrong.mutable_training()->set_micro_batches(9);
  EXPECT_EQ(Submit(wrong).status().code(), absl::StatusCode::kInvalidArgument);
  v1::JobSpec large = Spec(1);
  large.mutable_model()->set_n_embd(1 << 14);
  large.mutable_model()->set_n_layer(1000);
  EXPECT_EQ(Submit(large).status().code(), absl::StatusCode::kFailedPrecondition);
  dataset_.set_num_tokens(5000);
  EXPECT_EQ(Submit(Spec(1)).status().code(), absl::StatusCode::kInvalidArgument);
  dataset_.set_sha256(Sha256Hex("never uploaded"));
  EXPECT_EQ(Submit(Spec(1)).status().code(), absl::StatusCode::kFailedPrecondition);
  dataset_.set_sha256("../../etc/passwd");
  EXPECT_EQ(Submit(Spec(1)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CoordinatorServiceTest, PlansOnTheLivingWorkers) {
  AddWorker("w0");
  v1::PlanJobRequest request;
  *request.mutable_spec() = Spec(2);
  v1::PlanJobResponse response;
  grpc::ClientContext first;
  Deadline(&first);
  EXPECT_EQ(stub_->PlanJob(&first, request, &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  AddWorker("w1");
  grpc::ClientContext second;
  Deadline(&second);
  ASSERT_TRUE(stub_->PlanJob(&second, request, &response).ok());
  EXPECT_EQ(response.plan().stage_size(), 2);
}

TEST_F(CoordinatorServiceTest, RefusesChunksThatAreTooLargeOrOutOfPlace) {
  const std::string content(3 << 20, 'x');
  for (const bool too_large : {true, false}) {
    grpc::ClientContext context;
    Deadline(&context);
    v1::UploadBlobResponse response;
    const auto writer = stub_->UploadBlob(&context, &response);
    v1::UploadBlobRequest request;
    request.set_sha256(Sha256Hex(content));
    request.set_size_bytes(static_cast<int64_t>(content.size()));
    request.set_data(content.substr(0, too_large ? (1 << 20) + 1 : 100));
    writer->Write(request);
    request.set_offset(50);
    writer->Write(request);
    writer->WritesDone();
    EXPECT_EQ(writer->Finish().error_code(),
              too_large ? grpc::StatusCode::INVALID_ARGUMENT : grpc::StatusCode::OUT_OF_RANGE);
  }
}

}  // namespace
}  // namespace headrace
