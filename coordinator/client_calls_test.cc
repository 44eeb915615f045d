// What clients ask for beside a job's life: pages of steps, plans, tokens, blobs; and what is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/sha256.h"
#include "coordinator/coordinator_fixture.h"
#include "coordinator/store/store.h"

namespace headrace {
namespace {

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
