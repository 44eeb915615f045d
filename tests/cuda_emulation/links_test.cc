// Real worker processes on emulated CUDA devices, and what goes between them: every transport gives
// the same bits, says what it is and why, and ends in one sentence when a worker does. NCCL is a
// fake (worker/transport/fake_nccl.cc); CUDA IPC maps the memory of the other process.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"
#include "tests/cuda_emulation/emulated_workers.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// A worker on emulated GPU `gpu`, with NCCL.
WorkerOptions GpuWorker(const std::string& name, int gpu) {
  WorkerOptions options = CudaWorker(name, absl::StrCat("gpu=", gpu));
  options.prefix.push_back(absl::StrCat("HEADRACE_NCCL=", HEADRACE_FAKE_NCCL));
  return options;
}

// Four workers on two GPUs: wherever the stages are, some neighbours share one and some do not.
class CudaLinks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto started = TestCluster::Start(
        {GpuWorker("w0", 0), GpuWorker("w1", 0), GpuWorker("w2", 0), GpuWorker("w3", 1)});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = started->release();
    cluster_->WriteFile("tiny.txt", TinyText());
  }
  static void TearDownTestSuite() { delete cluster_; }

  static TinyJob Job(int stages, const char* transport) {
    TinyJob job = Gpt2();
    job.stages = stages;
    job.schedule = "1f1b";
    job.transport = transport;
    return job;
  }
  // The links of a job that has ended, by "from→to".
  static std::map<std::string, nlohmann::json> Links(const std::string& id) {
    std::map<std::string, nlohmann::json> links;
    const nlohmann::json described = cluster_->Describe(id);
    for (const nlohmann::json& link : described.at("links")) {
      links[absl::StrCat(link.value("from_stage", 0), "→", link.value("to_stage", 0))] = link;
    }
    return links;
  }

  static TestCluster* cluster_;
};
TestCluster* CudaLinks::cluster_ = nullptr;

TEST_F(CudaLinks, GiveTheSameBitsWhateverTheyAre) {
  const Numbers alone = Train(cluster_, Job(1, "auto"));
  ASSERT_EQ(alone.losses.size(), 2u);
  std::vector<TinyJob> jobs;
  for (const char* transport : {"auto", "cuda_ipc", "grpc", "shm"}) {
    jobs.push_back(Job(2, transport));
    jobs.push_back(Job(4, transport));
  }
  for (const TinyJob& job : jobs) {
    const Numbers numbers = Train(cluster_, job);
    EXPECT_EQ(numbers.losses, alone.losses) << Describe(job);
    EXPECT_EQ(numbers.validation_loss, alone.validation_loss) << Describe(job);
    EXPECT_EQ(numbers.weights_sha256, alone.weights_sha256) << Describe(job);
  }
}

// On GPUs of their own, for NCCL takes no two ranks on one.
TEST_F(CudaLinks, ByNcclTheSameBitsToo) {
  const Numbers alone = Train(cluster_, Job(1, "auto"));
  const auto started = TestCluster::Start(
      {GpuWorker("w0", 0), GpuWorker("w1", 1), GpuWorker("w2", 2), GpuWorker("w3", 3)});
  ASSERT_TRUE(started.ok()) << started.status();
  TestCluster& cluster = **started;
  cluster.WriteFile("tiny.txt", TinyText());
  for (const int stages : {2, 4}) {
    const Numbers numbers = Train(&cluster, Job(stages, "nccl"));
    EXPECT_EQ(numbers.losses, alone.losses) << stages;
    EXPECT_EQ(numbers.weights_sha256, alone.weights_sha256) << stages;
  }
  // A generation after a lost one has communicators of its own.
  TinyJob long_job = Job(4, "nccl");
  long_job.steps = 1000;
  long_job.eval_every = 0;
  const auto lost = cluster.Submit(JobFileText(long_job));
  ASSERT_TRUE(lost.ok()) << lost.status();
  ASSERT_TRUE(cluster.WaitForStep(*lost, 1).ok());
  cluster.Kill("w1");
  const auto ended = cluster.WaitForEnd(*lost, absl::Seconds(10));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_THAT(ended->message(), HasSubstr("w1"));
  ASSERT_TRUE(cluster.AddWorker(GpuWorker("w1", 1)).ok());
  ASSERT_TRUE(cluster.WaitForFreeWorkers(4).ok());
  EXPECT_EQ(Train(&cluster, Job(4, "nccl")).weights_sha256, alone.weights_sha256);
}

TEST_F(CudaLinks, SayWhatTheyAreAndWhy) {
  const std::string id = Ended(cluster_, Job(4, "auto"));
  std::set<std::string> reasons;
  for (const auto& [edge, link] : Links(id)) {
    EXPECT_EQ(link.value("transport", ""), "cuda_ipc") << edge;
    reasons.insert(link.value("reason", ""));
  }
  EXPECT_EQ(reasons,
            (std::set<std::string>{"both stages are on one GPU", "the GPUs are of one host"}));
  const ClientRun described = cluster_->Run({"describe", id});
  EXPECT_THAT(described.out, HasSubstr("cuda_ipc"));
  EXPECT_THAT(described.out, HasSubstr("both stages are on one GPU"));
}

TEST_F(CudaLinks, ARefusedForcedTransportSaysWho) {
  const std::string id = Ended(cluster_, Job(4, "nccl"));
  const std::string message = cluster_->Describe(id).value("message", "");
  EXPECT_THAT(message, HasSubstr("cannot connect: link to stage "));
  EXPECT_THAT(message,
              HasSubstr("pipeline.transport is nccl, but nccl: both stages are on one GPU"));
  // Nobody is worse for it.
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(4).ok());
}

TEST(CudaLinksThatFail, EndTheJobAndLeaveTheOthersFree) {
  const auto started =
      TestCluster::Start({GpuWorker("w0", 0), GpuWorker("w1", 0), GpuWorker("w2", 0)});
  ASSERT_TRUE(started.ok()) << started.status();
  TestCluster& cluster = **started;
  cluster.WriteFile("tiny.txt", TinyText());
  TinyJob job = Gpt2();
  job.stages = 3;
  job.transport = "cuda_ipc";
  job.eval_every = 0;
  const Numbers before = Train(&cluster, job);
  TinyJob long_job = job;
  long_job.steps = 1000;
  const auto lost = cluster.Submit(JobFileText(long_job));
  ASSERT_TRUE(lost.ok()) << lost.status();
  ASSERT_TRUE(cluster.WaitForStep(*lost, 1).ok());
  cluster.Kill("w1");
  const auto ended = cluster.WaitForEnd(*lost, absl::Seconds(10));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(ended->message(), HasSubstr("w1"));
  ASSERT_TRUE(cluster.WaitForFreeWorkers(2).ok());
  ASSERT_TRUE(cluster.AddWorker(GpuWorker("w1", 0)).ok());
  ASSERT_TRUE(cluster.WaitForFreeWorkers(3).ok());
  EXPECT_EQ(Train(&cluster, job).weights_sha256, before.weights_sha256);
}

// Forced where there is no device: refused when it is planned.
TEST(CudaLinksWithoutDevices, AreRefused) {
  const auto started = TestCluster::Start({CpuWorker("c0"), CpuWorker("c1")});
  ASSERT_TRUE(started.ok()) << started.status();
  TestCluster& cluster = **started;
  cluster.WriteFile("tiny.txt", TinyText());
  TinyJob job = Gpt2();
  job.transport = "cuda_ipc";
  const ClientRun plan = cluster.Run({"plan", cluster.WriteFile("refused.yaml", JobFileText(job))});
  EXPECT_NE(plan.exit_code, 0);
  EXPECT_THAT(plan.err, HasSubstr("pipeline.transport: cuda_ipc is for CUDA devices: it needs 2 "
                                  "workers with one, has 0; worker c0 has none; say auto"));
}

}  // namespace
}  // namespace headrace
