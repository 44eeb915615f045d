// Simulated workers under the real coordinator: their time, their order, what they refuse, and that
// no job mixes them with real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kStages = 8;

std::vector<WorkerOptions> Simulated(int count, const std::string& device) {
  std::vector<WorkerOptions> workers(count);
  for (int i = 0; i < count; ++i) {
    workers[i].name = absl::StrCat("w", i);
    workers[i].memory_limit = "16GiB";
    workers[i].more_flags = {"--device", device};
  }
  return workers;
}

class SimTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto cluster = TestCluster::Start(Simulated(kStages, "sim:action=2ms"));
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = cluster->release();
    cluster_->WriteFile("tiny.txt", TinyText());
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }

  static TinyJob SmallJob() {
    TinyJob job;
    job.layers = kStages;
    job.stages = kStages;
    job.batch = job.micro_batches = 6;
    job.eval_every = 2;
    return job;
  }
  static std::string Submit(const TinyJob& job) {
    cluster_->WriteFile("job.yaml", JobFileText(job));
    const ClientRun run = cluster_->Run({"submit", "job.yaml", "--simulate"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return std::string(absl::StripAsciiWhitespace(run.out));
  }
  static Json RunToEnd(const TinyJob& job) {
    const std::string id = Submit(job);
    const auto ended = cluster_->WaitForEnd(id);
    EXPECT_TRUE(ended.ok()) << ended.status();
    if (ended.ok()) {
      EXPECT_EQ(ended->state(), v1::JOB_STATE_DONE) << Standing(*ended);
    }
    return cluster_->Describe(id);
  }

  static TestCluster* cluster_;
};

TestCluster* SimTest::cluster_ = nullptr;

TEST_F(SimTest, AStepTakesWhatThePlanSaysAndNothingIsKept) {
  const TinyJob job = SmallJob();
  const Json described = RunToEnd(job);
  ASSERT_EQ(described.at("steps").size(), 4u);
  // 6 + 8 − 1 forwards, then 6 recomputes and backwards on the last stage and 7 backwards up.
  const double shortest_s = (13 + 2 * 6 + 7) * 2e-3;
  EXPECT_NEAR(described.at("plan").at("step_s"), shortest_s, 0.2 * shortest_s);
  for (const Json& step : described.at("steps")) {
    EXPECT_EQ(step.at("loss"), 0);
    EXPECT_EQ(step.at("gradient_norm"), 0);
    EXPECT_GE(step.at("seconds"), 0.9 * shortest_s);
    // A step or an action may take less, if it makes up for the late end of the one before.
    for (const Json& seconds : step.at("stage_seconds")) {
      EXPECT_GT(seconds.at("compute"), 0.5 * 2 * 6 * 2e-3);
      EXPECT_GT(seconds.at("recompute"), 0.5 * 6 * 2e-3);
    }
  }
  EXPECT_EQ(described.at("steps")[1].at("validation_loss"), 0);
  EXPECT_THAT(described.at("message").get<std::string>(), HasSubstr("no weights are kept"));
  EXPECT_TRUE(described.at("weights").empty());
  EXPECT_FALSE(described.contains("weights_sha256"));
  for (const Json& stage : described.at("plan").at("stage")) {
    EXPECT_EQ(stage.at("sim").at("forward_s"), 2e-3);
  }
  // Memory is accounted as on a real device.
  for (int k = 0; k < kStages; ++k) {
    for (const char* kind : {"weights", "gradients", "optimizer", "stash", "workspace"}) {
      EXPECT_EQ(described.at("peak_memory")[k].at(kind),
                described.at("plan").at("stage")[k].at("memory").at(kind))
          << kind;
    }
  }
  const ClientRun text = cluster_->Run({"describe", described.at("id")});
  EXPECT_THAT(text.out, HasSubstr("SIMULATED"));
}

TEST_F(SimTest, EveryRunTellsTheSame) {
  const Json first = RunToEnd(SmallJob()), second = RunToEnd(SmallJob());
  EXPECT_EQ(first.at("plan"), second.at("plan"));
  for (size_t i = 0; i < 4; ++i) {
    for (const char* key : {"step", "loss", "gradient_norm", "learning_rate", "tokens"}) {
      EXPECT_EQ(first.at("steps")[i].at(key), second.at("steps")[i].at(key)) << key;
    }
  }
}

TEST_F(SimTest, WhatNeedsNumbersIsRefused) {
  const Json described = RunToEnd(SmallJob());
  const ClientRun generate = cluster_->Run({"generate", described.at("id"), "--prompt", "A"});
  EXPECT_EQ(generate.exit_code, 5) << generate.err;
  EXPECT_THAT(generate.err, HasSubstr("simulated"));
  const ClientRun verify = cluster_->Run({"verify", described.at("id")});
  EXPECT_EQ(verify.exit_code, 5) << verify.err;
  EXPECT_THAT(verify.err, HasSubstr("simulated"));
  const ClientRun prompt =
      cluster_->Run({"run", "job.yaml", "--workers", absl::StrCat(kStages), "--device",
                     "sim:action=1ms", "--prompt", "A"});
  EXPECT_EQ(prompt.exit_code, 2) << prompt.err;
  EXPECT_THAT(prompt.err, HasSubstr("--prompt"));
}

TEST_F(SimTest, NoJobGetsSimulatedWorkersUnasked) {
  cluster_->WriteFile("real.yaml", JobFileText(TinyJob()));
  for (const char* verb : {"submit", "plan"}) {
    const ClientRun run = cluster_->Run({verb, "real.yaml"});
    EXPECT_EQ(run.exit_code, 5) << verb << ": " << run.err;
    EXPECT_THAT(run.err, HasSubstr("all 8 workers are simulated"));
    EXPECT_THAT(run.err, HasSubstr("--simulate"));
  }
  const ClientRun plan = cluster_->Run({"plan", "real.yaml", "--simulate"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("SIMULATED"));
  EXPECT_THAT(cluster_->Run({"workers"}).out, HasSubstr("simulated: 2 ms an action"));

  // With a real worker beside them, two stages still have to wait for a second one.
  WorkerOptions real;
  real.name = "real";
  ASSERT_TRUE(cluster_->AddWorker(real).ok());
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(kStages + 1).ok());
  const auto waits = cluster_->Submit(JobFileText(TinyJob()));
  ASSERT_TRUE(waits.ok()) << waits.status();
  const Json waiting = cluster_->Describe(*waits);
  EXPECT_EQ(waiting.at("state"), "queued");
  EXPECT_THAT(waiting.at("message").get<std::string>(), HasSubstr("needs 2 workers, has 1"));
  EXPECT_EQ(cluster_->Run({"cancel", *waits}).exit_code, 0);
  TinyJob one;
  one.stages = 0;
  const auto id = cluster_->Submit(JobFileText(one));
  ASSERT_TRUE(id.ok()) << id.status();
  const auto ended = cluster_->WaitForEnd(*id);
  ASSERT_TRUE(ended.ok()) << ended.status();
  const Json trained = cluster_->Describe(*id);
  EXPECT_EQ(trained.at("plan").at("stages"), 1);
  EXPECT_GT(trained.at("steps")[0].at("loss"), 0);
  EXPECT_EQ(cluster_->Terminate("real").value_or(-1), 0);
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(kStages).ok());
}

TEST_F(SimTest, AFlagThatCannotWorkIsRefused) {
  cluster_->WriteFile("job.yaml", JobFileText(SmallJob()));
  for (const char* device : {"sim:action=20", "sim:nothing", "gpu", "sim:action=1ms,memory=1GiB"}) {
    const ClientRun run = cluster_->Run({"run", "job.yaml", "--workers", absl::StrCat(kStages),
                                         "--memory-limit", "1GiB", "--device", device});
    EXPECT_EQ(run.exit_code, 2) << device << ": " << run.err;
    EXPECT_THAT(run.err, HasSubstr("--device")) << device;
  }
}

// "12:00:00.123456 step 3, micro-batch 1: forward" → "3F1", for stage 3.
std::vector<std::string> ActionsDone(const Json& record) {
  std::vector<std::string> done;
  for (const Json& entry : record.at("entries")) {
    const std::string text = entry.get<std::string>();
    const size_t at = text.find("micro-batch ");
    if (at == std::string::npos) continue;
    const std::vector<std::string> words = absl::StrSplit(text.substr(at + 12), ": ");
    if (words.size() != 2) continue;
    for (const auto& [word, letter] :
         {std::pair{"forward", "F"}, {"recompute", "R"}, {"backward", "B"}}) {
      if (words[1] == word) {
        done.push_back(absl::StrCat(record.at("stage").get<int>(), letter, words[0]));
      }
    }
  }
  return done;
}

// Worker death under simulation, and by the survivors' records the order of what they did.
TEST_F(SimTest, ADeadWorkerIsNamedAndTheOthersHadDoneWhatThePlanSays) {
  TinyJob job = SmallJob();
  job.steps = 100'000;
  job.eval_every = 0;
  job.schedule = "1f1b";
  const std::string id = Submit(job);
  ASSERT_TRUE(cluster_->WaitForStep(id, 2).ok());
  cluster_->Kill("w3");
  const auto ended = cluster_->WaitForEnd(id);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(ended->message(), HasSubstr("w3"));
  const Json described = cluster_->Describe(id);
  int compared = 0;
  for (const Json& record : described.at("flight_records")) {
    const size_t k = record.at("stage");
    const std::vector<std::string> done = ActionsDone(record);
    if (record.at("worker") == "w3" || done.empty()) continue;
    std::vector<std::string> planned =
        absl::StrSplit(described.at("plan").at("stage")[k].at("actions").get<std::string>(), ' ');
    // The record begins somewhere in a step; from there on it is the list, over and over.
    const auto first = std::find(planned.begin(), planned.end(), done[0]);
    ASSERT_NE(first, planned.end()) << done[0];
    for (size_t i = 0; i < done.size(); ++i) {
      ASSERT_EQ(done[i], planned[(first - planned.begin() + i) % planned.size()])
          << "stage " << k << ", action " << i;
    }
    compared += static_cast<int>(done.size());
  }
  EXPECT_GT(compared, 7 * 12);
}

int64_t PeakResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "VmHWM:")) return 1024 * std::stoll(line.substr(6));
  }
  return 0;
}

// 2 billion parameters in fp32 with gradients and moments, over a link of 1 Gbit/s: the link takes
// its time, and no memory is taken.
TEST(SimWireTest, ALargeModelOverADeclaredLinkTakesTimeAndNoMemory) {
  auto started = TestCluster::Start(Simulated(2, "sim:action=5ms,link=1Gbit/s,latency=1ms"));
  ASSERT_TRUE(started.ok()) << started.status();
  TestCluster& cluster = **started;
  cluster.WriteFile("tiny.txt", TinyText());
  TinyJob job;
  job.layers = 30;
  job.width = 2048;
  job.heads = 16;
  job.context = job.length = 512;
  job.batch = job.micro_batches = 4;
  job.tied = false;
  job.steps = 3;
  job.recompute = "never";
  job.schedule = "1f1b";
  cluster.WriteFile("job.yaml", JobFileText(job));
  const ClientRun run = cluster.Run({"submit", "job.yaml", "--simulate", "--watch"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json described = cluster.Describe("tiny");
  const double way_s = 4.0 * 512 * 2048 / 125e6 + 1e-3;
  // A micro-batch down, up, and each further one as fast as the link carries one.
  const double shortest_s = 4 * 5e-3 + 2 * way_s + 3 * way_s;
  // One step may take a little less, if it makes up for the late end of the one before.
  for (const Json& step : described.at("steps")) EXPECT_GE(step.at("seconds"), 0.9 * shortest_s);
  EXPECT_GE(described.at("plan").at("step_s"), 0.999 * shortest_s);
  EXPECT_GT(described.at("peak_memory")[0].at("weights"), int64_t{3} << 30);
  for (const char* worker : {"w0", "w1"}) {
    EXPECT_LT(PeakResidentBytes(cluster.process(worker).pid()), int64_t{150} << 20);
  }
}

}  // namespace
}  // namespace headrace
