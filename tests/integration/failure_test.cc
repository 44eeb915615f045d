// Whatever goes away, the job ends within seconds in one sentence, the survivors serve the next
// job, and nothing hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"

namespace headrace {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kEndTime = absl::Seconds(5);

// Steps long enough to be interrupted, more of them than anybody waits for.
TinyJob EndlessJob(int stages) {
  TinyJob job;
  job.name = "endless";
  job.layers = 4;
  job.width = 64;
  job.context = 64;
  job.length = 64;
  job.batch = 16;
  job.micro_batches = 4;
  job.steps = 1'000'000;
  job.stages = stages;
  job.schedule = "1f1b";
  return job;
}

TinyJob ShortJob(int stages) {
  TinyJob job;
  job.name = "next";
  job.stages = stages;
  return job;
}

class FailureTest : public testing::Test {
 protected:
  void StartCluster(int num_workers, bool cuttable = false) {
    std::vector<WorkerOptions> workers(static_cast<size_t>(num_workers));
    for (int i = 0; i < num_workers; ++i) {
      workers[static_cast<size_t>(i)].name = absl::StrCat("w", i);
      workers[static_cast<size_t>(i)].cuttable = cuttable;
      // One that is told to stop does so at once: handing over is another test's.
      workers[static_cast<size_t>(i)].more_flags = {"--drain-time", "0"};
    }
    auto cluster = TestCluster::Start(workers);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    cluster_->WriteFile("tiny.txt", TinyText());
  }

  // Submits an endless job over all workers and waits until it is well under way.
  void StartJob(int stages, const std::string& more_recovery = "") {
    TinyJob endless = EndlessJob(stages);
    endless.more_recovery = more_recovery;
    const auto id = cluster_->Submit(JobFileText(endless));
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
    const auto running = cluster_->WaitForStep(id_, 3);
    ASSERT_TRUE(running.ok()) << running.status();
    stage_workers_.clear();
    const nlohmann::json job = cluster_->Describe(id_);
    for (const nlohmann::json& stage : job.at("plan").at("stage")) {
      stage_workers_.push_back(stage.at("worker"));
    }
    ASSERT_EQ(stage_workers_.size(), static_cast<size_t>(stages));
  }

  // The job fails within 5 s of `since`, in one sentence that names the culprit and where a
  // survivor stood.
  void ExpectFailure(absl::Time since, int culprit_stage, const std::string& cause) {
    const auto ended = cluster_->WaitForEnd(id_, absl::Seconds(30));
    ASSERT_TRUE(ended.ok()) << ended.status();
    EXPECT_LE(absl::Now() - since, kEndTime);
    EXPECT_EQ(ended->state(), v1::JOB_STATE_FAILED);
    const std::string& message = ended->message();
    const std::string& culprit = stage_workers_[static_cast<size_t>(culprit_stage)];
    EXPECT_THAT(message, HasSubstr(absl::StrCat("worker ", culprit)));
    EXPECT_THAT(message, HasSubstr(absl::StrCat("stage ", culprit_stage)));
    EXPECT_THAT(message, ContainsRegex("step [0-9]+"));
    EXPECT_THAT(message, AnyOf(ContainsRegex("micro-batch [0-9]+"), HasSubstr("norm"),
                               HasSubstr("decision"), HasSubstr("tied")));
    EXPECT_THAT(message, AnyOf(HasSubstr("from stage"), HasSubstr("to stage")));
    EXPECT_THAT(message, ContainsRegex(cause));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    RecordProperty("message", message);
    std::cerr << "  \"" << message << "\"\n";
  }

  // `describe` has a flight record with entries of every survivor.
  void ExpectFlightRecords(int culprit_stage) {
    const nlohmann::json job = cluster_->Describe(id_);
    std::vector<std::string> recorded;
    for (const nlohmann::json& record : job.value("flight_records", nlohmann::json::array())) {
      if (!record.at("entries").empty()) recorded.push_back(record.at("worker"));
    }
    for (size_t stage = 0; stage < stage_workers_.size(); ++stage) {
      if (static_cast<int>(stage) == culprit_stage) continue;
      EXPECT_THAT(recorded, testing::Contains(stage_workers_[stage]));
    }
  }

  void ExpectNextJobRuns(int stages) {
    const auto id = cluster_->Submit(JobFileText(ShortJob(stages)));
    ASSERT_TRUE(id.ok()) << id.status();
    const auto ended = cluster_->WaitForEnd(*id, absl::Seconds(20));
    ASSERT_TRUE(ended.ok()) << ended.status();
    EXPECT_EQ(ended->state(), v1::JOB_STATE_DONE) << Standing(*ended);
  }

  std::unique_ptr<TestCluster> cluster_;
  std::string id_;
  std::vector<std::string> stage_workers_;
};

// Each place in the pipeline has other neighbours: the first, one in the middle, the last.
class KilledWorkerTest : public FailureTest, public testing::WithParamInterface<int> {};

TEST_P(KilledWorkerTest, EndsTheJobInASentenceAndTheRestGoOn) {
  const int stage = GetParam();
  StartCluster(3);
  StartJob(3);
  const absl::Time since = absl::Now();
  cluster_->Kill(stage_workers_[static_cast<size_t>(stage)]);
  ExpectFailure(since, stage, "lost|reset|closed|refused|ended");
  ExpectFlightRecords(stage);
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(2).ok());
  ExpectNextJobRuns(2);
}
INSTANTIATE_TEST_SUITE_P(Stage, KilledWorkerTest, testing::Values(0, 1, 2));

class StoppedWorkerTest : public FailureTest, public testing::WithParamInterface<int> {};

TEST_P(StoppedWorkerTest, EndsTheJobAndIsTakenBackWhenItWakes) {
  const int stage = GetParam();
  StartCluster(2);
  StartJob(2);
  const std::string& victim = stage_workers_[static_cast<size_t>(stage)];
  const absl::Time since = absl::Now();
  cluster_->Pause(victim);
  ExpectFailure(since, stage, "lost|lease|silent|keepalive|answer|heartbeat");
  ExpectFlightRecords(stage);
  ExpectNextJobRuns(1);
  cluster_->Resume(victim);
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(2).ok());
  ExpectNextJobRuns(2);
}
INSTANTIATE_TEST_SUITE_P(Stage, StoppedWorkerTest, testing::Values(0, 1));

struct Cut {
  Proxy::Mode mode;
  int stage;  // nothing gets through to its worker any more
};
class CutLinkTest : public FailureTest, public testing::WithParamInterface<Cut> {};

TEST_P(CutLinkTest, EndsTheJobAndServesAgainWhenMended) {
  const auto [mode, stage] = GetParam();
  StartCluster(2, /*cuttable=*/true);
  StartJob(2);
  const std::string victim = stage_workers_[static_cast<size_t>(stage)];
  const absl::Time since = absl::Now();
  cluster_->Link(victim).Set(mode);
  ExpectFailure(since, stage, "lost|reset|closed|keepalive|unreachable|answer|ended|refused");
  cluster_->Link(victim).Set(Proxy::Mode::kPass);
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(2).ok());
  ExpectNextJobRuns(2);
}
INSTANTIATE_TEST_SUITE_P(Link, CutLinkTest,
                         testing::Values(Cut{Proxy::Mode::kDrop, 0}, Cut{Proxy::Mode::kDrop, 1},
                                         Cut{Proxy::Mode::kReset, 1}));

TEST_F(FailureTest, ATerminatedWorkerLeavesInOrderAndIsNamed) {
  StartCluster(2);
  StartJob(2);
  const absl::Time since = absl::Now();
  const auto code = cluster_->Terminate(stage_workers_[0]);
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  EXPECT_LE(absl::Now() - since, absl::Seconds(2));
  const auto ended = cluster_->WaitForEnd(id_, absl::Seconds(30));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_LE(absl::Now() - since, kEndTime);
  EXPECT_THAT(ended->message(), HasSubstr(absl::StrCat("worker ", stage_workers_[0])));
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(1).ok());
  ExpectNextJobRuns(1);
}

TEST_F(FailureTest, AWorkerKilledWhileItPreparesEndsTheJob) {
  StartCluster(2);
  const auto id = cluster_->Submit(JobFileText(EndlessJob(2)));
  ASSERT_TRUE(id.ok()) << id.status();
  const auto placed = cluster_->WaitForJob(*id, absl::Seconds(10), [](const v1::Job& job) {
    return job.state() != v1::JOB_STATE_QUEUED;
  });
  ASSERT_TRUE(placed.ok()) << placed.status();
  const absl::Time since = absl::Now();
  cluster_->Kill("w1");
  const auto ended = cluster_->WaitForEnd(*id, absl::Seconds(30));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_LE(absl::Now() - since, kEndTime);
  EXPECT_EQ(ended->state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(ended->message(), HasSubstr("worker w1"));
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(1).ok());
  ExpectNextJobRuns(1);
}

TEST_F(FailureTest, WatchersLearnOfAFailureByExitCodeAndSentence) {
  StartCluster(2);
  cluster_->WriteFile("endless.yaml", JobFileText(EndlessJob(2)));
  auto client = cluster_->StartClient("watcher", {"submit", "--watch", "endless.yaml"});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(cluster_->WaitForStep("j1", 2).ok());
  cluster_->Kill("w0");
  const auto code = (*client)->Wait(absl::Now() + absl::Seconds(10));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 1);
  EXPECT_THAT(cluster_->Log("watcher"), HasSubstr("worker w0"));
}

// Workers train on while their coordinator is away, but not for longer than the job says.
TEST_F(FailureTest, ACoordinatorAwayForTooLongFreesTheWorkersAndComesBackWithItsJobs) {
  StartCluster(2);
  StartJob(2, "  coordinator_timeout_s: 1\n");
  const auto queued = cluster_->Submit(JobFileText(ShortJob(2)));
  ASSERT_TRUE(queued.ok()) << queued.status();
  auto watcher = cluster_->StartClient("watcher", {"watch", id_});
  ASSERT_TRUE(watcher.ok()) << watcher.status();
  cluster_->KillCoordinator();
  const ClientRun unreachable = cluster_->Run({"list"}, absl::Seconds(20));
  EXPECT_EQ(unreachable.exit_code, 4) << unreachable.err;
  // The workers end their stages by themselves, and the first to do so says why.
  const absl::Time deadline = absl::Now() + kEndTime;
  const auto says = [&](const std::string& worker, const std::string& text) {
    return cluster_->Log(worker).find(text) != std::string::npos;
  };
  while (!(says("w0", ": ended") && says("w1", ": ended")) && absl::Now() < deadline) {
    absl::SleepFor(kLook);
  }
  EXPECT_TRUE(says("w0", ": ended") && says("w1", ": ended"));
  EXPECT_TRUE(says("w0", "lost the coordinator") || says("w1", "lost the coordinator"));
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  const auto failed = cluster_->WaitForEnd(id_, absl::Seconds(30));
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(failed->state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(failed->message(), HasSubstr("coordinator"));
  const auto done = cluster_->WaitForEnd(*queued, absl::Seconds(30));
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->state(), v1::JOB_STATE_DONE) << Standing(*done);
  // A watch goes on over the restart, or ends as unreachable; it never hangs.
  const auto code = (*watcher)->Wait(absl::Now() + absl::Seconds(20));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_THAT(*code, AnyOf(1, 4));
}

}  // namespace
}  // namespace headrace
