// What becomes of jobs: trained, failed, cancelled, kept over a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/sha256.h"
#include "coordinator/coordinator_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_EQ(
      job.message(),
      "worker w0 (stage 0) lost: it has not come back since the coordinator was restarted; the "
      "last finished step is 2");
  EXPECT_EQ(Get(*queued).state(), v1::JOB_STATE_QUEUED);
  AddWorker("w0");
  EXPECT_EQ(AwaitEnd(*queued).state(), v1::JOB_STATE_DONE);
  const auto third = Submit(Spec(1));
  EXPECT_EQ(*third, "j3") << "numbers go on";
}

// The new coordinator has given it no assignment, and must find it all the same.
TEST_F(CoordinatorServiceTest, TakesOverWhatRunsOnWhileItIsAwayAndCanStopIt) {
  FakeWorker* w0 = AddWorker("w0", {.hold_after_step = 2});
  const auto id = Submit(Spec(1));
  ASSERT_TRUE(id.ok()) << id.status();
  AwaitStep(*id, 2);
  listen_ = coordinator_->address();
  coordinator_.reset();
  Start();
  // Its messages are the machine's matter; that it serves again is what this waits for.
  for (const absl::Time deadline = absl::Now() + kPatience;;) {
    grpc::ClientContext context;
    Deadline(&context);
    v1::ListWorkersResponse workers;
    const grpc::Status listed = stub_->ListWorkers(&context, v1::ListWorkersRequest(), &workers);
    ASSERT_TRUE(listed.ok()) << listed.error_message();
    if (workers.workers_size() == 1 && workers.workers(0).job_id() == *id) break;
    ASSERT_LT(absl::Now(), deadline);
    absl::SleepFor(absl::Milliseconds(5));
  }
  const v1::Job job = Get(*id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_RUNNING) << job.message();
  EXPECT_EQ(job.generation(), 1);
  EXPECT_EQ(job.step(), 2);
  EXPECT_EQ(w0->assigned(), 1);
  EXPECT_EQ(w0->stopped(), 0);
  ASSERT_TRUE(Cancel(*id).ok());
  EXPECT_EQ(AwaitEnd(*id).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(w0->stopped(), 1);
}

}  // namespace
}  // namespace headrace
