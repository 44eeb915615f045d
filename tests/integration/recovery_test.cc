// What goes away while a job runs, and that the job is done all the same, with the very numbers.
#include <signal.h>

#include "tests/integration/survival_fixture.h"

namespace headrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kEveryFew[] = "  every_steps: 5\n  replicate: off\n";

class RecoveryTest : public SurvivalTest {
 protected:
  static void SetUpTestSuite() { StartCluster(SlowWorkers(3, /*cuttable=*/true)); }

  // The last of its recoveries is over, and told in full.
  static void ExpectRecovery(const nlohmann::json& job, const std::string& cause) {
    ASSERT_FALSE(job.at("recoveries").empty());
    const nlohmann::json& last = job.at("recoveries").back();
    EXPECT_THAT(last.at("cause").get<std::string>(), HasSubstr(cause));
    const double detected = last.at("detected_unix_s"), planned = last.at("planned_unix_s"),
                 loaded = last.at("loaded_unix_s"), replayed = last.at("replayed_unix_s");
    EXPECT_LE(detected, planned);
    EXPECT_LE(planned, loaded);
    EXPECT_LE(loaded, replayed);
    EXPECT_LE(last.at("from_step"), last.at("lost_step"));
    EXPECT_GE(job.at("generation"), 2);
    EXPECT_THAT(Events(job.at("id")), Not(HasSubstr("differs when replayed")));
  }
};

// Each place in the pipeline; a spare worker takes over.
class KilledStageTest : public RecoveryTest, public testing::WithParamInterface<int> {};

TEST_P(KilledStageTest, MovesToTheSpareWorkerWithTheSameNumbers) {
  const TinyJob job = SurvivingJob(2, kEveryFew);
  const std::string id = SubmitUntil(job, 8);
  const std::string victim = WorkerOf(id, static_cast<size_t>(GetParam()));
  const absl::Time since = absl::Now();
  cluster_->Kill(victim);
  const auto again = cluster_->WaitForJob(id, absl::Seconds(20), [](const v1::Job& now) {
    return now.generation() == 2 && now.state() == v1::JOB_STATE_RUNNING;
  });
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_LE(absl::Now() - since, absl::Seconds(5));
  const nlohmann::json done = AwaitDone(id);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  ExpectRecovery(done, absl::StrCat("worker ", victim));
  EXPECT_EQ(done.at("recoveries").back().at("source"), "checkpoint");
  ASSERT_TRUE(cluster_->RestartWorker(victim).ok());
}
INSTANTIATE_TEST_SUITE_P(Stage, KilledStageTest, testing::Values(0, 1));

TEST_F(RecoveryTest, AStoppedWorkerIsLeftBehindAndFreeWhenItWakes) {
  const TinyJob job = SurvivingJob(2, kEveryFew);
  const std::string id = SubmitUntil(job, 8);
  const std::string victim = WorkerOf(id, 1);
  cluster_->Pause(victim);
  const nlohmann::json done = AwaitDone(id);
  cluster_->Resume(victim);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  ExpectRecovery(done, absl::StrCat("worker ", victim));
}

class CutOffTest : public RecoveryTest, public testing::WithParamInterface<Proxy::Mode> {};

TEST_P(CutOffTest, AWorkerThatNothingReachesIsReplaced) {
  const TinyJob job = SurvivingJob(2, kEveryFew);
  const std::string id = SubmitUntil(job, 8);
  const std::string victim = WorkerOf(id, 1);
  cluster_->Link(victim).Set(GetParam());
  const auto again = cluster_->WaitForJob(id, absl::Seconds(30),
                                          [](const v1::Job& now) { return now.generation() >= 2; });
  cluster_->Link(victim).Set(Proxy::Mode::kPass);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(OutcomeOf(AwaitDone(id)), Undisturbed(job));
}
INSTANTIATE_TEST_SUITE_P(Mode, CutOffTest,
                         testing::Values(Proxy::Mode::kDrop, Proxy::Mode::kReset));

TEST_F(RecoveryTest, WithoutASpareItGoesOnWithFewerStagesAndComesBackToMore) {
  TinyJob job = SurvivingJob(3, kEveryFew);
  job.steps = 120;
  const std::string id = SubmitUntil(job, 8);
  const std::string victim = WorkerOf(id, 1);
  cluster_->Kill(victim);
  const auto fewer = cluster_->WaitForJob(id, absl::Seconds(20), [](const v1::Job& now) {
    return now.generation() == 2 && now.state() == v1::JOB_STATE_RUNNING;
  });
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_LE(cluster_->Describe(id).at("placement").size(), 2u);
  ASSERT_TRUE(cluster_->RestartWorker(victim).ok());
  // elastic: auto. Its next checkpoint is a few steps away.
  const auto more = cluster_->WaitForJob(id, absl::Seconds(75), [](const v1::Job& now) {
    return now.placement_size() == 3 && now.state() == v1::JOB_STATE_RUNNING;
  });
  const nlohmann::json done = AwaitDone(id);
  EXPECT_TRUE(more.ok() || done.at("state") == "done") << more.status();
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
}

TEST_F(RecoveryTest, ANeighboursSnapshotIsEnoughWithoutAnyCheckpoint) {
  const TinyJob job = SurvivingJob(2, "  replicate: neighbour\n  replicate_every: 2\n");
  const std::string id = SubmitUntil(job, 12);
  const std::string victim = WorkerOf(id, 0);
  cluster_->Kill(victim);
  const nlohmann::json done = AwaitDone(id);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  ExpectRecovery(done, absl::StrCat("worker ", victim));
  const nlohmann::json& last = done.at("recoveries").back();
  EXPECT_EQ(last.at("source"), "replicas");
  EXPECT_GE(last.at("from_step").get<int64_t>() + 6, last.at("lost_step").get<int64_t>());
  EXPECT_THAT(CheckpointSteps(done), IsEmpty());
  ASSERT_TRUE(cluster_->RestartWorker(victim).ok());
}

TEST_F(RecoveryTest, WithoutAnyStateItBeginsAgain) {
  const TinyJob job = SurvivingJob(1, "  replicate: off\n");
  const std::string id = SubmitUntil(job, 5);
  const std::string victim = WorkerOf(id, 0);
  cluster_->Kill(victim);
  const nlohmann::json done = AwaitDone(id);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  EXPECT_EQ(done.at("recoveries").back().at("source"), "the beginning");
  ASSERT_TRUE(cluster_->RestartWorker(victim).ok());
}

TEST_F(RecoveryTest, ATerminatedWorkerHandsOverAndEndsInOrder) {
  const TinyJob job = SurvivingJob(2, "  replicate: off\n");
  const std::string id = SubmitUntil(job, 6);
  const std::string victim = WorkerOf(id, 0);
  const auto code = cluster_->Terminate(victim);
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  const nlohmann::json done = AwaitDone(id);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  // It left at a checkpoint of its own: nothing was done twice.
  EXPECT_THAT(CheckpointSteps(done), Not(IsEmpty()));
  for (const nlohmann::json& recovery : done.at("recoveries")) {
    EXPECT_EQ(recovery.at("from_step"), recovery.at("lost_step"));
  }
  ASSERT_TRUE(cluster_->RestartWorker(victim).ok());
}

TEST_F(RecoveryTest, ADrainedWorkerIsLeftAndServesAgainWhenUncordoned) {
  const TinyJob job = SurvivingJob(2, "  replicate: off\n");
  const std::string id = SubmitUntil(job, 6);
  const std::string victim = WorkerOf(id, 1);
  Client({"drain", victim});
  const auto moved = cluster_->WaitForJob(id, absl::Seconds(20), [&](const v1::Job& now) {
    if (now.state() != v1::JOB_STATE_RUNNING || now.generation() < 2) return false;
    for (const v1::Placement& place : now.placement()) {
      if (place.worker() == victim) return false;
    }
    return true;
  });
  EXPECT_TRUE(moved.ok()) << moved.status();
  const nlohmann::json done = AwaitDone(id);
  Client({"uncordon", victim});
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
}

TEST_F(RecoveryTest, ACordonedWorkerIsGivenNothing) {
  Client({"cordon", "w1"});
  TinyJob job = SurvivingJob(2, "  replicate: off\n");
  job.steps = 4;
  const nlohmann::json done = AwaitDone(Submit(job));
  for (const nlohmann::json& stage : done.at("plan").at("stage")) {
    EXPECT_NE(stage.at("worker"), "w1");
  }
  Client({"uncordon", "w1"});
}

// The numbers of a job whose loss explodes are the same for any number of stages, too.
class ExplodingLossTest : public RecoveryTest, public testing::WithParamInterface<const char*> {};

TEST_P(ExplodingLossTest, IsLeftOutAsTold) {
  TinyJob job = SurvivingJob(1, kEveryFew);
  job.learning_rate = 0.2;  // learns in jumps
  job.more_recovery = absl::StrCat("  on_nan: ", GetParam(), "\n  spike_factor: 1.02\n");
  const nlohmann::json one = AwaitDone(Submit(job));
  job.stages = 3;
  const nlohmann::json three = AwaitDone(Submit(job));
  EXPECT_EQ(OutcomeOf(one), OutcomeOf(three));
  EXPECT_EQ(one.at("skipped"), three.at("skipped"));
  EXPECT_EQ(one.at("step"), job.steps);
  if (std::string(GetParam()) == "skip") {
    int skipped = 0;
    for (const StepOutcome& step : OutcomeOf(one).steps) skipped += !step.skipped.empty();
    EXPECT_GT(skipped, 0) << "no loss exploded";
  } else {
    EXPECT_THAT(one.at("skipped"), Not(IsEmpty())) << "no loss exploded";
  }
}
INSTANTIATE_TEST_SUITE_P(Policy, ExplodingLossTest, testing::Values("skip", "rollback"));

TEST_F(RecoveryTest, RestartOffEndsTheJobAsBefore) {
  TinyJob job = SurvivingJob(2, kEveryFew);
  job.restart = false;
  const std::string id = SubmitUntil(job, 8);
  const std::string victim = WorkerOf(id, 0);
  cluster_->Kill(victim);
  const auto ended = cluster_->WaitForEnd(id, absl::Seconds(10));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_FAILED);
  ASSERT_TRUE(cluster_->RestartWorker(victim).ok());
  // … and a person may let it go on.
  Client({"resume", id});
  EXPECT_EQ(OutcomeOf(AwaitDone(id)), Undisturbed(job));
}

}  // namespace
}  // namespace headrace
