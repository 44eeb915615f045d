// What becomes of jobs while the coordinator's store takes nothing, and what is kept as it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "absl/time/clock.h"
#include "coordinator/coordinator_fixture.h"
#include "coordinator/store/database.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

class StoreTroubleTest : public CoordinatorServiceTest {
 protected:
  // From now on nobody else can write.
  void LockStore() {
    auto opened = Database::Open(folder_ + "/headrace.db", 0x48524345);
    ASSERT_TRUE(opened.ok()) << opened.status();
    locker_ = *std::move(opened);
    absl::Status locked = absl::UnavailableError("");
    // The coordinator may be about to write.
    for (int i = 0; i < 10 && !locked.ok(); ++i) locked = locker_->Execute("BEGIN IMMEDIATE");
    ASSERT_TRUE(locked.ok()) << locked;
  }
  void UnlockStore() { locker_.reset(); }

  std::unique_ptr<Database> locker_;
};

TEST_F(StoreTroubleTest, AJobTrainsOnAndNothingIsLostWhileTheStoreIsAway) {
  FakeWorker* w0 = AddWorker("w0", {.step_time = absl::Milliseconds(20)});
  v1::JobSpec spec = Spec(1);
  spec.mutable_training()->set_steps(150);
  const auto id = Submit(spec);
  ASSERT_TRUE(id.ok()) << id.status();
  AwaitStep(*id, 1);
  LockStore();
  auto second = std::async(std::launch::async, [&] { return Submit(Spec(1)); });
  // Longer than one try to commit takes.
  const int64_t step = w0->reported_step();
  const absl::Time until = absl::Now() + absl::Milliseconds(2200);
  EXPECT_EQ(second.wait_for(absl::ToChronoMilliseconds(until - absl::Now())),
            std::future_status::timeout)
      << "answered before it was saved";
  EXPECT_GT(w0->reported_step(), step + 10) << "it trains on";
  const int64_t saved = Get(*id).step();
  UnlockStore();
  EXPECT_LT(saved, w0->reported_step());
  const absl::StatusOr<std::string> answer = second.get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  const v1::Job job = AwaitEnd(*id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_DONE) << job.message();
  ASSERT_EQ(job.steps_size(), 150);
  for (int i = 0; i < 150; ++i) EXPECT_EQ(job.steps(i).step(), i + 1);
  EXPECT_EQ(AwaitEnd(*answer).state(), v1::JOB_STATE_DONE);
}

TEST_F(StoreTroubleTest, JobsEndOnceTheStoreIsAwayForTooLong) {
  coordinator_.reset();
  store_patience_ = absl::Seconds(1);
  Start();
  FakeWorker* w0 = AddWorker("w0", {.step_time = absl::Milliseconds(20)});
  v1::JobSpec spec = Spec(1);
  spec.mutable_training()->set_steps(1'000'000);
  const auto id = Submit(spec);
  ASSERT_TRUE(id.ok()) << id.status();
  AwaitStep(*id, 1);
  LockStore();
  EXPECT_TRUE(w0->AwaitStopped(1, absl::Now() + kPatience));
  UnlockStore();
  const v1::Job job = AwaitEnd(*id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(job.message(), HasSubstr("the coordinator cannot save the job"));
}

// A report that was answered with OK is in the store when the coordinator has ended: its worker
// will not send it to the next one.
TEST_F(StoreTroubleTest, WhatWorkersWereToldHasArrivedIsKeptAsTheCoordinatorEnds) {
  FakeWorker* w0 = AddWorker("w0", {.step_time = absl::Microseconds(200)});
  v1::JobSpec spec = Spec(1);
  spec.mutable_training()->set_steps(1'000'000);
  const auto id = Submit(spec);
  ASSERT_TRUE(id.ok()) << id.status();
  AwaitStep(*id, 50);
  const absl::Time since = absl::Now();
  coordinator_->Stop(absl::Milliseconds(500));
  EXPECT_LT(absl::Now() - since, absl::Seconds(2));
  const int64_t reported = w0->reported_step();
  workers_.clear();
  coordinator_.reset();
  const auto store = Store::Open(folder_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_GE((*store)->jobs().LoadJob(*id)->job.step(), reported);
}

}  // namespace
}  // namespace headrace
