// For tests: a whole coordinator in this process, real RPCs, workers that compute nothing
// (fake_worker.h).
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

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
#include "coordinator/small_job.h"

namespace headrace {

inline constexpr absl::Duration kPatience = absl::Seconds(20);

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
    options.listen = listen_;
    options.data_dir = folder_;
    options.store_patience = store_patience_;
    options.adopt_time = absl::Seconds(1);
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
    v1::JobSpec spec = SmallJob("bible", stages);
    spec.mutable_training()->set_steps(3);
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
  std::string listen_ = "127.0.0.1:0";
  absl::Duration store_patience_ = absl::Seconds(60);
  v1::Dataset dataset_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
};

}  // namespace headrace
