// Layers are measured on workers before a job is placed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/coordinator_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace headrace
