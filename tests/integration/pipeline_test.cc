// What a user does with a cluster that is well: jobs of every shape, several at once, their plans,
// memory and idle time, verify and generate.
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

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr int kWorkers = 4;

class PipelineTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto cluster = TestCluster::Start(kWorkers);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = cluster->release();
    cluster_->WriteFile("tiny.txt", TinyText());
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }

  static std::string Submit(const TinyJob& job) {
    const auto id = cluster_->Submit(JobFileText(job));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or("");
  }
  // Runs the job to its end and returns what `describe` says.
  static Json RunToEnd(const TinyJob& job) {
    const std::string id = Submit(job);
    const auto ended = cluster_->WaitForEnd(id);
    EXPECT_TRUE(ended.ok()) << ended.status();
    if (ended.ok()) {
      EXPECT_EQ(ended->state(), v1::JOB_STATE_DONE) << Standing(*ended);
    }
    return cluster_->Describe(id);
  }
  static TinyJob EndlessJob(int stages) {
    TinyJob job;
    job.name = "endless";
    job.stages = stages;
    job.width = 64;
    job.steps = 1'000'000;
    return job;
  }

  static TestCluster* cluster_;
};

TestCluster* PipelineTest::cluster_ = nullptr;

int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t Floats(int64_t count) { return Aligned(4 * count); }

// GPipe §2.3 by hand, for the gpt2 family: what a micro-batch of `sequences` keeps.
struct Shapes {
  int64_t sequences, length, width, heads;
  int64_t tokens() const { return sequences * length; }
  int64_t layer_output() const { return Floats(tokens() * width); }
  int64_t boundary(int64_t first_layer) const {
    return first_layer == 0 ? Aligned(4 * tokens()) : layer_output();
  }
  int64_t norm() const { return 2 * Floats(tokens()) + layer_output(); }
  int64_t block() const {
    return 2 * norm() + Floats(3 * tokens() * width) + 2 * layer_output() +
           Floats(sequences * heads * length) + Floats(4 * tokens() * width);
  }
  // Layers [first, end) of blocks 1 … `blocks` between an embedding and a head.
  int64_t working_set(int64_t first, int64_t end, int64_t blocks) const {
    int64_t bytes = (end - first - 1) * layer_output();
    for (int64_t layer = first; layer < end; ++layer) {
      if (layer >= 1 && layer <= blocks) bytes += block();
    }
    return bytes;
  }
};

// Micro-batches in flight on a stage: those that its list runs forward before the first backward.
int64_t InFlight(const Json& stage) {
  const std::string actions = stage.at("actions");
  return std::count(actions.begin(), actions.begin() + actions.find('B'), 'F');
}

// Expected peak stash of a stage: boundaries of the micro-batches in flight, and one working set,
// or one for each of them where nothing is recomputed.
int64_t ExpectedStash(const TinyJob& job, const Json& stage) {
  const Shapes shapes{(job.batch + job.micro_batches - 1) / job.micro_batches, job.length,
                      job.width, job.heads};
  const int64_t k = stage.at("stage"), first = stage.at("first_layer"), end = stage.at("end_layer");
  const int64_t all = job.micro_batches, in_flight = InFlight(stage);
  // 1F1B: K − k, or up to as many more a stage as there are credits, to hide the links.
  const bool gpipe = job.schedule == "gpipe";
  EXPECT_GE(in_flight, gpipe ? all : std::min<int64_t>(all, job.stages - k));
  EXPECT_LE(in_flight, gpipe ? all : std::min<int64_t>(all, 2 * (job.stages - 1 - k) + 1));
  const int64_t kept = job.recompute == "always" ? 1 : in_flight;
  return in_flight * shapes.boundary(first) + kept * shapes.working_set(first, end, job.layers);
}

TEST_F(PipelineTest, PeakMemoryIsWhatThePlanSaidAndThePaperClaims) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (const char* recompute : {"always", "except_last", "never"}) {
      SCOPED_TRACE(absl::StrCat(schedule, " ", recompute));
      TinyJob job;
      job.layers = 3;
      job.stages = 3;
      job.batch = 10;
      job.micro_batches = 4;  // 3, 3, 2 and 2 sequences
      job.schedule = schedule;
      job.recompute = recompute;
      const Json described = RunToEnd(job);
      const Json& measured = described.at("peak_memory");
      const Json& stages = described.at("plan").at("stage");
      ASSERT_EQ(measured.size(), 3u);
      for (size_t k = 0; k < 3; ++k) {
        SCOPED_TRACE(absl::StrCat("stage ", k));
        const Json& predicted = stages[k].at("memory");
        for (const char* kind : {"weights", "gradients", "optimizer", "stash", "workspace"}) {
          EXPECT_EQ(measured[k].at(kind), predicted.at(kind)) << kind;
        }
        EXPECT_LE(measured[k].at("link"), predicted.at("link"));
        if (job.recompute == "except_last") continue;
        EXPECT_EQ(measured[k].at("stash"), ExpectedStash(job, stages[k]));
      }
    }
  }
}

TEST_F(PipelineTest, EachStepTellsWhereItsTimeWent) {
  TinyJob job;
  job.stages = 2;
  job.batch = 8;
  job.micro_batches = 8;
  job.steps = 5;
  const std::string id = Submit(job);
  ASSERT_TRUE(cluster_->WaitForEnd(id).ok());
  const Json described = cluster_->Describe(id);
  EXPECT_DOUBLE_EQ(described.at("plan").at("ideal_bubble"), 1.0 / 9);  // (K−1)/(M+K−1)
  ASSERT_EQ(described.at("steps").size(), 5u);
  for (const Json& step : described.at("steps")) {
    double idle = 0;
    ASSERT_EQ(step.at("stage_seconds").size(), 2u);
    for (const Json& seconds : step.at("stage_seconds")) {
      const double wall = seconds.at("wall"), compute = seconds.at("compute"),
                   recompute = seconds.at("recompute"), optimizer = seconds.at("optimizer");
      const double waits =
          seconds.at("wait_receive").get<double>() + seconds.at("wait_send").get<double>();
      EXPECT_GT(wall, 0);
      EXPECT_GT(compute, 0);
      EXPECT_GT(recompute, 0);
      EXPECT_GT(optimizer, 0);
      EXPECT_GE(waits, 0);
      EXPECT_LE(compute + recompute + optimizer + waits, wall * 1.001);
      idle += (wall - compute - recompute - optimizer) / wall / 2;
    }
    EXPECT_NEAR(step.at("bubble"), idle, 1e-9);
    EXPECT_EQ(step.at("tokens"), job.batch * job.length);
    EXPECT_GT(step.at("seconds"), 0);
  }
  const ClientRun text = cluster_->Run({"describe", id});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("11.1 %"));
}

TEST_F(PipelineTest, EveryOrdinaryShapeRuns) {
  struct Case {
    const char* what;
    int stages, batch, micro_batches;
  };
  const Case cases[] = {{"M < K", 4, 6, 2},        {"M = 1", 3, 5, 1},
                        {"K = 1", 1, 6, 3},        {"M = K = 1", 1, 4, 1},
                        {"uneven parts", 2, 7, 4}, {"one sequence each", 2, 5, 5},
                        {"a layer each", 4, 8, 4}, {"auto", 0, 6, 3}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    TinyJob job;
    job.stages = c.stages;
    job.batch = c.batch;
    job.micro_batches = c.micro_batches;
    job.schedule = "1f1b";
    job.steps = 2;
    const Json described = RunToEnd(job);
    EXPECT_EQ(described.at("state"), "done");
    int64_t sequences = 0;
    for (const Json& part : described.at("plan").at("micro_batch_sequences")) {
      sequences += part.get<int64_t>();
    }
    EXPECT_EQ(sequences, c.batch);
    if (c.stages > 0) {
      EXPECT_EQ(described.at("plan").at("stages"), c.stages);
    }
  }
}

TEST_F(PipelineTest, LayersAreMeasuredOnceForAllJobsOfOneShape) {
  TinyJob job;
  job.width = 48;  // as in no other test
  const std::string first = Submit(job);
  ASSERT_TRUE(cluster_->WaitForEnd(first).ok());
  const ClientRun measured = cluster_->Run({"logs", first});
  EXPECT_THAT(measured.out, HasSubstr("measures its layers on w0\n"));
  EXPECT_THAT(measured.out, testing::ContainsRegex("measured on w0 .*layer 0: .*, layer 1: .*, "
                                                   "layer 3: .* ms\n"));
  EXPECT_THAT(measured.out, HasSubstr("balanced by measured layers"));
  const ClientRun text = cluster_->Run({"describe", first});
  EXPECT_THAT(text.out, HasSubstr(" a step by measured layers, bubble"));

  job.name = "again";
  job.schedule = "1f1b";
  job.steps = 2;
  const std::string second = Submit(job);
  ASSERT_TRUE(cluster_->WaitForEnd(second).ok());
  const ClientRun known = cluster_->Run({"logs", second});
  EXPECT_THAT(known.out, Not(HasSubstr("measured on")));
  EXPECT_THAT(known.out, HasSubstr("balanced by measured layers"));
  for (const Json& stage : cluster_->Describe(second).at("plan").at("stage")) {
    EXPECT_EQ(stage.at("cost_source"), "measured");
  }
}

TEST_F(PipelineTest, MoreStagesThanLayersIsRefused) {
  TinyJob job;
  job.layers = 1;  // with embedding and head: three layers
  job.stages = 4;
  cluster_->WriteFile("deep.yaml", JobFileText(job));
  const ClientRun run = cluster_->Run({"submit", "deep.yaml"});
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr("pipeline.stages"));
  EXPECT_THAT(run.err, HasSubstr("3"));
}

TEST_F(PipelineTest, JobsRunBesideEachOtherOnWorkersOfTheirOwnAndTheRestWait) {
  const std::string first = Submit(EndlessJob(2));
  const std::string second = Submit(EndlessJob(2));
  ASSERT_TRUE(cluster_->WaitForStep(first, 2).ok());
  ASSERT_TRUE(cluster_->WaitForStep(second, 2).ok());
  std::vector<std::string> used;
  for (const std::string& id : {first, second}) {
    const Json described = cluster_->Describe(id);
    EXPECT_EQ(described.at("state"), "running");
    for (const Json& stage : described.at("plan").at("stage")) used.push_back(stage.at("worker"));
  }
  std::sort(used.begin(), used.end());
  EXPECT_THAT(used, testing::ElementsAre("w0", "w1", "w2", "w3"));

  TinyJob short_job;
  short_job.name = "third";
  const std::string third = Submit(short_job);
  const Json waiting = cluster_->Describe(third);
  EXPECT_EQ(waiting.at("state"), "queued");
  EXPECT_THAT(waiting.at("message").get<std::string>(), HasSubstr("worker"));
  const ClientRun list = cluster_->Run({"list", "-o", "json"});
  EXPECT_THAT(list.out, HasSubstr("\"third\""));

  EXPECT_EQ(cluster_->Run({"cancel", first}).exit_code, 0);
  const auto done = cluster_->WaitForEnd(third);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->state(), v1::JOB_STATE_DONE) << Standing(*done);
  EXPECT_EQ(cluster_->Describe(first).at("state"), "cancelled");
  EXPECT_EQ(cluster_->Describe(second).at("state"), "running");
  EXPECT_EQ(cluster_->Run({"watch", first}).exit_code, 1);
  EXPECT_EQ(cluster_->Run({"cancel", second}).exit_code, 0);
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(kWorkers).ok());
}

TEST_F(PipelineTest, AQueuedJobCanBeCancelled) {
  const std::string running = Submit(EndlessJob(4));
  ASSERT_TRUE(cluster_->WaitForStep(running, 1).ok());
  const std::string queued = Submit(EndlessJob(1));
  EXPECT_EQ(cluster_->Run({"cancel", queued}).exit_code, 0);
  const auto ended = cluster_->WaitForEnd(queued);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(cluster_->Run({"cancel", running}).exit_code, 0);
  ASSERT_TRUE(cluster_->WaitForFreeWorkers(kWorkers).ok());
}

TEST_F(PipelineTest, VerifyFindsNoTensorThatDiffers) {
  TinyJob job;
  job.stages = 3;
  job.schedule = "1f1b";
  const Json described = RunToEnd(job);
  const ClientRun run = cluster_->Run({"verify", described.at("id"), "--steps", "2", "-o", "json"});
  EXPECT_EQ(run.exit_code, 0) << run.err << run.out;
  const Json report = Json::parse(run.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object()) << run.out;
  EXPECT_EQ(report.at("differing"), 0);
  // At least every layer's output and every weight, in every step.
  EXPECT_GT(report.at("tensors"), 2 * (4 * 3 + 28));
}

TEST_F(PipelineTest, GenerateDrawsTheSameTextForTheSameSeed) {
  const Json described = RunToEnd(TinyJob());
  const std::string id = described.at("id");
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate", id,   "--prompt", "The river",
                                          "-n",       "24", "-o",       "json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ClientRun run = cluster_->Run(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const Json json = Json::parse(run.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << run.out;
    return json.is_object() ? json.at("tokens").get<std::vector<int>>() : std::vector<int>();
  };
  const std::vector<int> drawn = generate({"--seed", "1"});
  EXPECT_EQ(drawn.size(), 24u);
  EXPECT_EQ(generate({"--seed", "1"}), drawn);
  EXPECT_NE(generate({"--seed", "2"}), drawn);
  const std::vector<int> likeliest = generate({"--temperature", "0", "--seed", "1"});
  EXPECT_EQ(generate({"--temperature", "0", "--seed", "2"}), likeliest);
  EXPECT_EQ(generate({"--top-k", "1", "--seed", "3"}), likeliest);
}

TEST_F(PipelineTest, APlanNeedsNoClusterAndSaysWhatWouldMakeItFit) {
  TinyJob job;
  job.layers = 4;
  job.width = 256;
  cluster_->WriteFile("wide.yaml", JobFileText(job));
  const ClientRun fits = cluster_->Run({"plan", "wide.yaml", "--workers", "2:8GiB"});
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_THAT(fits.out, HasSubstr("F"));
  const ClientRun refused = cluster_->Run({"plan", "wide.yaml", "--workers", "2:20MiB"});
  EXPECT_EQ(refused.exit_code, 5) << refused.err << refused.out;
  EXPECT_THAT(refused.err, testing::ContainsRegex("stage [01].*MiB"));
  EXPECT_THAT(refused.err, HasSubstr("It would fit with 4 workers"));
}

}  // namespace
}  // namespace headrace
