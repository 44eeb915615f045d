// Processes that are told to end: at once, in order, and with a sentence for whoever waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kShutdown = absl::Seconds(2);

class ShutdownTest : public ::testing::Test {
 protected:
  void StartCluster(int num_workers) {
    std::vector<WorkerOptions> workers(num_workers);
    for (int i = 0; i < num_workers; ++i) {
      workers[i].name = absl::StrCat("w", i);
      workers[i].memory_limit = "3GiB";
      // A worker that is told to stop while the job cannot go on without it, and does not wait.
      workers[i].more_flags = {"--drain-time", "0"};
    }
    auto cluster = TestCluster::Start(workers);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    cluster_->WriteFile("tiny.txt", TinyText());
  }
  std::string Submit(const TinyJob& job) {
    const auto id = cluster_->Submit(JobFileText(job));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or("");
  }
  // SIGTERM, exit code 0, in time.
  void Terminate(const std::string& process) {
    const absl::Time since = absl::Now();
    const auto code = cluster_->Terminate(process);
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 0);
    EXPECT_LT(absl::Now() - since, kShutdown);
  }
  v1::Job AwaitEnd(const std::string& id) {
    const auto ended = cluster_->WaitForEnd(id);
    EXPECT_TRUE(ended.ok()) << ended.status();
    return ended.value_or(v1::Job());
  }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(ShutdownTest, ATerminatedWorkerSaysSoAndGetsNoFurtherJob) {
  StartCluster(2);
  TinyJob endless;
  endless.steps = 1'000'000;
  const std::string id = Submit(endless);
  ASSERT_TRUE(cluster_->WaitForStep(id, 2).ok());
  Terminate("w0");
  const v1::Job ended = AwaitEnd(id);
  EXPECT_EQ(ended.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(ended.message(), AllOf(HasSubstr("worker w0, stage "), HasSubstr("step "),
                                     HasSubstr("the worker was told to stop")));
  // Its lease has not run out yet, but w1 must get this.
  TinyJob next;
  next.stages = 1;
  const v1::Job done = AwaitEnd(Submit(next));
  EXPECT_EQ(done.state(), v1::JOB_STATE_DONE) << Standing(done);
}

// Without its goodbye it would be given jobs until its lease ran out, each of which would fail.
TEST_F(ShutdownTest, AnIdleWorkerThatEndsIsGoneAtOnceAndItsNameIsFree) {
  StartCluster(2);
  Terminate("w0");
  const ClientRun workers = cluster_->Run({"workers", "-o", "json"});
  ASSERT_EQ(workers.exit_code, 0) << workers.err;
  const nlohmann::json left = nlohmann::json::parse(workers.out);
  ASSERT_EQ(left.size(), 1u) << workers.out;
  EXPECT_EQ(left[0].at("name"), "w1");
  TinyJob next;
  next.stages = 1;
  EXPECT_EQ(AwaitEnd(Submit(next)).state(), v1::JOB_STATE_DONE);
  WorkerOptions again;
  again.name = "w0";
  ASSERT_TRUE(cluster_->AddWorker(again).ok());
  EXPECT_TRUE(cluster_->WaitForFreeWorkers(2).ok());
  EXPECT_EQ(cluster_->Log("w0").find("already"), std::string::npos) << cluster_->Log("w0");
}

// For a job that runs it is the workers who miss the coordinator; those that are free have done
// nothing wrong.
TEST_F(ShutdownTest, ACoordinatorThatWasStoppedLosesNobodyWhenItGoesOn) {
  StartCluster(2);
  cluster_->Pause("coordinator");
  absl::SleepFor(absl::Seconds(3));  // longer than any lease: what is measured here
  cluster_->Resume("coordinator");
  TinyJob job;
  EXPECT_EQ(AwaitEnd(Submit(job)).state(), v1::JOB_STATE_DONE);
  const std::string log = cluster_->Log("coordinator");
  EXPECT_THAT(log, HasSubstr("all workers get a fresh lease"));
  EXPECT_THAT(log, ::testing::Not(HasSubstr(" lost: ")));
}

// Work at hand cannot be interrupted. The worker ends in time all the same and says why first.
TEST_F(ShutdownTest, ATerminatedWorkerDoesNotFinishALongAction) {
  StartCluster(1);
  TinyJob heavy;
  heavy.stages = 1;
  heavy.layers = 1;
  heavy.width = 1024;
  heavy.heads = 8;
  heavy.context = heavy.length = 512;
  heavy.batch = 16;
  heavy.micro_batches = 1;
  heavy.recompute = "never";
  heavy.steps = 1000;
  const std::string id = Submit(heavy);
  // Behind a step comes the next one's forward, two seconds of one core.
  ASSERT_TRUE(cluster_->WaitForStep(id, 1, absl::Seconds(120)).ok());
  Terminate("w0");
  const v1::Job ended = AwaitEnd(id);
  EXPECT_EQ(ended.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(ended.message(),
              AllOf(HasSubstr("worker w0, stage 0"), HasSubstr("the worker was told to stop")));
}

TEST_F(ShutdownTest, ATerminatedCoordinatorEndsInOrderWhileAJobRunsAndWatchersWatch) {
  StartCluster(2);
  TinyJob endless;
  endless.steps = 1'000'000;
  const std::string id = Submit(endless);
  ASSERT_TRUE(cluster_->WaitForStep(id, 2).ok());
  std::vector<std::unique_ptr<ChildProcess>> clients;
  for (int i = 0; i < 2; ++i) {
    auto client = cluster_->StartClient(absl::StrCat("watch-", i), {"watch", id});
    ASSERT_TRUE(client.ok()) << client.status();
    clients.push_back(*std::move(client));
  }
  // One that does not read.
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_job(id);
  const auto idle = cluster_->stub().WatchJob(&context, request);
  const auto watched = [&](int i) {
    return cluster_->Log(absl::StrCat("watch-", i)).find("step") != std::string::npos;
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while ((!watched(0) || !watched(1)) && absl::Now() < deadline) absl::SleepFor(kLook);
  const auto before = cluster_->WaitForStep(id, 2);
  ASSERT_TRUE(before.ok()) << before.status();
  Terminate("coordinator");
  context.TryCancel();
  idle->Finish();
  // The workers train on meanwhile, and tell of it afterwards.
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  const auto after = cluster_->WaitForStep(id, before->step() + 10);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(cluster_->Run({"cancel", id}).exit_code, 0);
  EXPECT_EQ(AwaitEnd(id).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(cluster_->WaitForFreeWorkers(2).ok());
}

}  // namespace
}  // namespace headrace
