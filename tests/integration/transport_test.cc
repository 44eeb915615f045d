// How tensors travel between workers of one host: chosen and forced, told by describe, and gone
// without a trace when a worker dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::set<std::string> FilesInDevShm() {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    files.insert(entry.path().filename());
  }
  return files;
}

WorkerOptions Named(const std::string& name, bool cuttable = false) {
  WorkerOptions options;
  options.name = name;
  options.cuttable = cuttable;
  return options;
}

class TransportTest : public testing::Test {
 protected:
  void StartCluster(const std::vector<WorkerOptions>& workers) {
    auto cluster = TestCluster::Start(workers);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    cluster_->WriteFile("tiny.txt", TinyText());
  }

  // Runs it to its end, and checks that its memory was what was planned: shared slots count once.
  nlohmann::json LinksOf(const TinyJob& job) {
    const auto id = cluster_->Submit(JobFileText(job));
    if (!id.ok()) ADD_FAILURE() << id.status();
    const auto ended = cluster_->WaitForEnd(*id);
    if (!ended.ok() || ended->state() != v1::JOB_STATE_DONE) {
      ADD_FAILURE() << (ended.ok() ? Standing(*ended) : ended.status().ToString());
    }
    const nlohmann::json done = cluster_->Describe(*id);
    for (size_t k = 0; k < done["peak_memory"].size(); ++k) {
      const nlohmann::json& peak = done["peak_memory"][k];
      const nlohmann::json& planned = done["plan"]["stage"][k]["memory"];
      EXPECT_EQ(peak["stash"], planned["stash"]) << "stage " << k;
      if (job.stages > 1) {
        EXPECT_LE(peak["link"].get<int64_t>(), planned["link"].get<int64_t>()) << "stage " << k;
      }
    }
    return done["links"];
  }

  const std::set<std::string> before_ = FilesInDevShm();
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(TransportTest, EachLinkTellsItsTransportAndWhy) {
  StartCluster({Named("w0"), Named("w1"), Named("w2")});
  TinyJob job;
  job.stages = 3;  // tied: both ends talk too
  for (const char* transport : {"auto", "shm", "grpc"}) {
    job.transport = transport;
    const nlohmann::json links = LinksOf(job);
    ASSERT_EQ(links.size(), 6u) << links;
    for (const nlohmann::json& link : links) {
      const bool grpc = job.transport == "grpc";
      EXPECT_EQ(link["transport"], grpc ? "grpc" : "shm") << link;
      EXPECT_EQ(link["reason"],
                grpc ? "pipeline.transport is grpc" : "both workers are on one host");
      EXPECT_THAT(std::string(link["address"]), StartsWith("unix-abstract:headrace-worker-"));
    }
  }
  EXPECT_EQ(FilesInDevShm(), before_);
}

// An address that was given with --advertise is the one others come by, for control too.
TEST_F(TransportTest, TheStreamOfASharedLinkGoesWhereTheReceiverSaysItIs) {
  StartCluster({Named("w0", true), Named("w1", true)});
  TinyJob job;
  const nlohmann::json links = LinksOf(job);
  ASSERT_EQ(links.size(), 2u) << links;
  std::set<std::string> addresses = {cluster_->Link("w0").address(),
                                     cluster_->Link("w1").address()};
  for (const nlohmann::json& link : links) {
    EXPECT_EQ(link["transport"], "shm");
    EXPECT_EQ(addresses.count(link["address"]), 1u) << link;
  }
}

// At whatever moment: while it is assigned, while links open, in the middle of a tensor.
TEST_F(TransportTest, AWorkerKilledAtAnyMomentLeavesNothingBehindAndTheOtherServes) {
  TinyJob endless;
  endless.width = 64;
  endless.steps = 1'000'000;
  endless.transport = "shm";
  TinyJob next;
  next.stages = 1;
  for (const int delay_ms : {0, 10, 20, 40, 80, 200}) {
    SCOPED_TRACE(absl::StrCat("killed after ", delay_ms, " ms"));
    StartCluster({Named("w0"), Named("w1")});
    const auto id = cluster_->Submit(JobFileText(endless));
    ASSERT_TRUE(id.ok()) << id.status();
    const absl::Time kill = absl::Now() + absl::Milliseconds(delay_ms);
    (void)cluster_->WaitForJob(*id, absl::Milliseconds(delay_ms),
                               [kill](const v1::Job&) { return absl::Now() >= kill; });
    cluster_->Kill("w1");
    const auto ended = cluster_->WaitForEnd(*id, absl::Seconds(8));
    ASSERT_TRUE(ended.ok()) << ended.status();
    EXPECT_EQ(ended->state(), v1::JOB_STATE_FAILED) << Standing(*ended);
    EXPECT_THAT(ended->message(), HasSubstr("w1"));
    EXPECT_EQ(FilesInDevShm(), before_);
    EXPECT_EQ(LinksOf(next).size(), 0u);
  }
}

}  // namespace
}  // namespace headrace
