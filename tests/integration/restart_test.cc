// The coordinator goes away and comes back: jobs train on, nothing is lost or counted twice.
#include <signal.h>

#include "tests/integration/survival_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kEveryFew[] = "  every_steps: 5\n  replicate: off\n";

class RestartTest : public SurvivalTest {
 protected:
  static void SetUpTestSuite() { StartCluster(SlowWorkers(3)); }

  // Each step once, in order.
  static void ExpectEveryStepOnce(const nlohmann::json& job) {
    int64_t step = 0;
    for (const nlohmann::json& result : job.at("steps")) EXPECT_EQ(result.at("step"), ++step);
    EXPECT_EQ(step, job.at("spec").at("training").at("steps"));
  }
  static void AwaitLog(const std::string& process, const std::string& text) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (cluster_->Log(process).find(text) == std::string::npos) {
      ASSERT_LT(absl::Now(), deadline) << process << " does not say \"" << text << "\"";
      absl::SleepFor(kLook);
    }
  }
};

TEST_F(RestartTest, ARunningJobIsAdoptedAndNoStepIsLost) {
  TinyJob job = SurvivingJob(2, kEveryFew);
  job.steps = 100;
  const std::string id = SubmitUntil(job, 8);
  auto watcher = cluster_->StartClient("watcher", {"watch", id});
  ASSERT_TRUE(watcher.ok()) << watcher.status();
  cluster_->KillCoordinator();
  absl::SleepFor(absl::Seconds(1));  // in which they train on
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  const auto running = cluster_->WaitForStep(id, 60, absl::Seconds(40));
  ASSERT_TRUE(running.ok()) << running.status();
  const nlohmann::json done = AwaitDone(id);
  EXPECT_EQ(done.at("generation"), 1) << Events(id);
  ExpectEveryStepOnce(done);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  const auto code = (*watcher)->Wait(absl::Now() + absl::Seconds(20));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0) << cluster_->Log("watcher");
}

TEST_F(RestartTest, AWorkerLostMeanwhileIsReplaced) {
  TinyJob job = SurvivingJob(2, kEveryFew);
  job.steps = 100;
  const std::string id = SubmitUntil(job, 12);
  const std::string victim = WorkerOf(id, 1);
  cluster_->KillCoordinator();
  cluster_->Kill(victim);
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  const nlohmann::json done = AwaitDone(id);
  EXPECT_GE(done.at("generation"), 2);
  ExpectEveryStepOnce(done);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  ASSERT_TRUE(cluster_->RestartWorker(victim).ok());
}

TEST_F(RestartTest, KilledInTheMiddleOfACommitItOpensAgainWithTheCheckpointBefore) {
  TinyJob job = SurvivingJob(2, kEveryFew);
  job.steps = 60;
  cluster_->KillCoordinator();
  cluster_->SetCoordinatorEnvironment({"HEADRACE_FAULT=commit:kill:2"});
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(num_workers()).ok());
  const std::string id = Submit(job);
  const auto code = cluster_->process("coordinator").Wait(absl::Now() + absl::Seconds(20));
  ASSERT_TRUE(code.ok()) << "the second checkpoint was never committed";
  EXPECT_EQ(*code, 128 + SIGKILL);
  cluster_->SetCoordinatorEnvironment({});
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  const nlohmann::json done = AwaitDone(id);
  ExpectEveryStepOnce(done);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
}

TEST_F(RestartTest, AQueuedJobWaitsThroughIt) {
  TinyJob job = SurvivingJob(3, kEveryFew);
  job.steps = 30;
  const std::string first = SubmitUntil(job, 3);
  const std::string second = Submit(job);
  cluster_->KillCoordinator();
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  EXPECT_EQ(OutcomeOf(AwaitDone(first)), Undisturbed(job));
  EXPECT_EQ(OutcomeOf(AwaitDone(second)), Undisturbed(job));
}

TEST_F(RestartTest, ToldToStopItEndsWithinTwoSecondsAndTheJobGoesOn) {
  TinyJob job = SurvivingJob(2, kEveryFew);
  job.steps = 60;
  const std::string id = SubmitUntil(job, 6);
  const absl::Time since = absl::Now();
  const auto code = cluster_->Terminate("coordinator");
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  EXPECT_LT(absl::Now() - since, absl::Seconds(2));
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  const nlohmann::json done = AwaitDone(id);
  ExpectEveryStepOnce(done);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
}

TEST_F(RestartTest, WithoutACoordinatorForTooLongAStageEndsAndTheJobRecovers) {
  TinyJob job = SurvivingJob(2, kEveryFew);
  job.steps = 300;
  job.more_recovery = "  coordinator_timeout_s: 2\n";
  const std::string id = SubmitUntil(job, 8);
  const std::vector<std::string> workers = {WorkerOf(id, 0), WorkerOf(id, 1)};
  cluster_->KillCoordinator();
  for (size_t k = 0; k < workers.size(); ++k) {
    AwaitLog(workers[k], absl::StrCat("job ", id, ", stage ", k, ": ended"));
  }
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  const auto again = cluster_->WaitForJob(id, absl::Seconds(40), [](const v1::Job& now) {
    return now.generation() >= 2 && now.state() == v1::JOB_STATE_RUNNING;
  });
  ASSERT_TRUE(again.ok()) << again.status();
  Client({"cancel", id});
}

}  // namespace
}  // namespace headrace
