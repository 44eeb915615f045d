// What a worker refuses, and what stops nothing.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/worker_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

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
      {"start_step is 2", [](auto* a) { a->set_start_step(2); }},
      {"from no state", [](auto* a) { a->set_start_step(1); }},
      {"the end of a slice's layers is 9",
       [](auto* a) {
         a->set_start_step(1);
         a->add_weights()->set_sha256(std::string(64, 'a'));
         a->mutable_weights(0)->set_end_layer(9);
       }},
      {"the last of skipped steps is 0", [](auto* a) { a->add_skipped()->set_first(1); }},
      {"the first of skipped steps is 1; expected 2",
       [](auto* a) {
         for (int i = 0; i < 2; ++i) {
           a->add_skipped()->set_first(1);
           a->mutable_skipped(i)->set_last(1);
         }
       }},
      {"a recent loss is nan", [](auto* a) { a->add_recent_losses(std::nan("")); }},
      {"checkpoint.every_steps is -1",
       [](auto* a) { a->mutable_spec()->mutable_checkpoint()->set_every_steps(-1); }},
      {"checkpoint.every_minutes is -2",
       [](auto* a) { a->mutable_spec()->mutable_checkpoint()->set_every_minutes(-2); }},
      {"checkpoint.store is 's3://bucket'; expected file:///",
       [](auto* a) { a->mutable_spec()->mutable_checkpoint()->set_store("s3://bucket"); }},
      {"recovery.on_nan",
       [](auto* a) {
         a->mutable_spec()->mutable_recovery()->set_on_nan(static_cast<v1::NanPolicy>(9));
       }},
      {"recovery.spike_factor is -1",
       [](auto* a) { a->mutable_spec()->mutable_recovery()->set_spike_factor(-1); }},
      {"recovery.coordinator_timeout_s is inf",
       [](auto* a) { a->mutable_spec()->mutable_recovery()->set_coordinator_timeout_s(INFINITY); }},
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
  assignment.mutable_spec()->mutable_training()->set_bf16_emulate(true);
  EXPECT_TRUE(workers_[0]->Assign(assignment).ok());
}

TEST_F(WorkerServiceTest, WhatACudaDeviceCannotDoIsRefused) {
  WorkerLimits limits{int64_t{1} << 30, 1};
  limits.device = DeviceKind::kCuda;
  const v1::StageAssignment fits = Job(0, 2, 1);
  limits.staging_bytes = int64_t{1} << 20;
  EXPECT_TRUE(CheckAssignment(fits, limits).ok()) << CheckAssignment(fits, limits).status();
  limits.staging_bytes = 100;
  const absl::Status pinned = CheckAssignment(fits, limits).status();
  EXPECT_EQ(pinned.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(pinned.message()),
              HasSubstr("of pinned host memory for what travels, has 100 B"));
  v1::StageAssignment bf16 = Job(0, 1, 1);
  bf16.mutable_spec()->mutable_training()->set_precision(v1::PRECISION_BF16);
  EXPECT_THAT(std::string(CheckAssignment(bf16, limits).status().message()),
              HasSubstr("precision bf16 needs a CUDA device of compute capability 8.0"));
  limits.bf16 = true;
  EXPECT_TRUE(CheckAssignment(bf16, limits).ok());
  v1::StageAssignment wide = Job(0, 1, 1);
  wide.mutable_spec()->mutable_model()->set_n_embd(129 * 4);
  wide.mutable_spec()->mutable_model()->set_n_head(4);
  const absl::Status heads = CheckAssignment(wide, limits).status();
  EXPECT_EQ(heads.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      std::string(heads.message()),
      "stage 0, worker w0: attention heads of 129; on a CUDA device they may have at most 128");
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
