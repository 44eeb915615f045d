// `headrace trace` of real jobs: what each stage did, on one clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Slice {
  std::string name;
  int64_t step = 0;
  double begin_us = 0, end_us = 0;
};

// A trace taken apart: slices by stage and thread's name, and arrows.
struct Trace {
  Json about;
  std::map<std::pair<int, std::string>, std::vector<Slice>> threads;
  std::map<int64_t, std::pair<int, double>> starts, ends;  // id → stage, time
};

Trace Read(const std::string& text) {
  Trace trace;
  const Json json = Json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << text.substr(0, 200);
  if (json.is_discarded()) return trace;
  trace.about = json.at("otherData");
  std::map<std::pair<int, int>, std::string> names;
  for (const Json& event : json.at("traceEvents")) {
    if (event.at("name") == "thread_name") {
      names[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
    }
  }
  for (const Json& event : json.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase == "s") trace.starts[event.at("id")] = {event.at("pid"), event.at("ts")};
    if (phase == "f") trace.ends[event.at("id")] = {event.at("pid"), event.at("ts")};
    if (phase != "X") continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    trace.threads[{event.at("pid"), names.at({event.at("pid"), event.at("tid")})}].push_back(
        {event.at("name"), event.at("args").at("step"), begin, begin + duration});
  }
  return trace;
}

class TraceTest : public ::testing::Test {
 protected:
  void StartCluster(std::vector<std::string> prefix_of_w1 = {}) {
    std::vector<WorkerOptions> workers(2);
    workers[0].name = "w0";
    workers[1].name = "w1";
    workers[1].prefix = std::move(prefix_of_w1);
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
  std::string RunToEnd(const TinyJob& job) {
    const std::string id = Submit(job);
    const auto ended = cluster_->WaitForEnd(id);
    EXPECT_TRUE(ended.ok()) << ended.status();
    return id;
  }
  ClientRun RunTrace(const std::string& job, const std::string& steps) {
    return cluster_->Run({"trace", job, "--steps", steps, "-o", "-"});
  }

  std::unique_ptr<TestCluster> cluster_;
};

TinyJob TracedJob() {
  TinyJob job;
  job.name = "traced";
  job.layers = 4;
  job.width = 64;
  job.batch = 8;
  job.micro_batches = 4;
  job.steps = 5;
  job.eval_every = 2;
  return job;
}

double TimeOf(const std::vector<Slice>& slices, const std::string& name, int64_t step, bool end) {
  for (const Slice& slice : slices) {
    if (slice.name == name && slice.step == step) return end ? slice.end_us : slice.begin_us;
  }
  ADD_FAILURE() << "no " << name << " in step " << step;
  return 0;
}

TEST_F(TraceTest, TellsEveryActionWaitSendAndReceiveOfAJobThatHasEnded) {
  StartCluster();
  const std::string id = RunToEnd(TracedJob());
  const ClientRun run = RunTrace(id, "2..4");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Trace trace = Read(run.out);

  // Two workers of one machine have the coordinator's clock.
  ASSERT_EQ(trace.about.at("stages").size(), 2u);
  for (const Json& stage : trace.about.at("stages")) {
    EXPECT_EQ(stage.at("clock_error_us"), 0.0);
    EXPECT_EQ(stage.at("dropped_spans"), 0);
  }
  for (int stage : {0, 1}) {
    SCOPED_TRACE(absl::StrCat("stage ", stage));
    const auto& compute = trace.threads.at({stage, "compute"});
    for (int64_t step = 2; step <= 4; ++step) {
      for (int m = 0; m < 4; ++m) {
        SCOPED_TRACE(absl::StrCat("step ", step, ", micro-batch ", m));
        const double forward = TimeOf(compute, absl::StrCat("F", m), step, true);
        const double recompute = TimeOf(compute, absl::StrCat("R", m), step, false);
        const double recomputed = TimeOf(compute, absl::StrCat("R", m), step, true);
        const double backward = TimeOf(compute, absl::StrCat("B", m), step, false);
        EXPECT_LE(forward, recompute);
        EXPECT_LE(recomputed, backward);
        EXPECT_LE(backward, TimeOf(compute, "optimizer", step, false));
      }
      TimeOf(compute, "norm", step, false);
    }
    // Evaluated after steps 2 and 4: 4 mini-batches of 4 micro-batches.
    TimeOf(compute, "evaluate 15", 4, false);
  }
  EXPECT_GT(trace.threads.count({0, "receive from stage 1"}), 0u);
  EXPECT_GT(trace.threads.count({1, "send to stage 0"}), 0u);
  TimeOf(trace.threads.at({1, "compute"}), "wait for activation 0 from stage 0", 3, false);

  for (const auto& [thread, slices] : trace.threads) {
    for (size_t i = 1; i < slices.size(); ++i) {
      // Times are told to the nanosecond, in decimals of a microsecond.
      EXPECT_GE(slices[i].begin_us, slices[i - 1].end_us - 0.0011)
          << thread.second << " of stage " << thread.first << ": " << slices[i - 1].name << ", "
          << slices[i].name;
    }
  }
}

TEST_F(TraceTest, EverySendHasItsReceiveAndNoneComesBeforeItWasSent) {
  StartCluster();
  const std::string id = RunToEnd(TracedJob());
  const ClientRun run = RunTrace(id, "3");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Trace trace = Read(run.out);
  // 4 activations and 4 gradients, the tie's gradient and weight, a norm and a decision.
  EXPECT_EQ(trace.starts.size(), 12u);
  ASSERT_EQ(trace.ends.size(), trace.starts.size());
  for (const auto& [arrow, start] : trace.starts) {
    EXPECT_NE(trace.ends.at(arrow).first, start.first);
    EXPECT_GE(trace.ends.at(arrow).second, start.second - 0.001);
  }
}

// w1 lives in a time of its own, 1,000 s ahead: its clock is known by its heartbeats only.
TEST_F(TraceTest, ClocksOfDifferentMachinesAreAligned) {
  const std::vector<std::string> unshare = {
      "/usr/bin/unshare", "--time", "--monotonic", "1000", "--fork", "--kill-child"};
  std::string command;
  for (const std::string& word : unshare) absl::StrAppend(&command, word, " ");
  if (std::system((command + "true 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "this process may not make a time namespace";
  }
  StartCluster(unshare);
  const std::string id = RunToEnd(TracedJob());
  const ClientRun run = RunTrace(id, "3");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Trace trace = Read(run.out);
  EXPECT_EQ(trace.about.at("stages")[0].at("clock_error_us"), 0.0);
  const double error_us = trace.about.at("stages")[1].at("clock_error_us");
  EXPECT_GT(error_us, 0.0);
  EXPECT_LT(error_us, 1e6);  // half of a call's deadline
  ASSERT_EQ(trace.starts.size(), 12u);
  for (const auto& [arrow, start] : trace.starts) {
    EXPECT_GE(trace.ends.at(arrow).second, start.second - error_us - 1);
  }
}

TEST_F(TraceTest, AJobThatRunsIsTracedTooAndOldStepsAreRefusedByName) {
  StartCluster();
  TinyJob endless;
  endless.name = "endless";
  endless.steps = 1'000'000;
  const std::string id = Submit(endless);
  ASSERT_TRUE(cluster_->WaitForStep(id, 20).ok());
  const ClientRun last = cluster_->Run({"trace", id, "-o", "-"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_GE(Read(last.out).about.at("last_step"), 20);
  const ClientRun future = RunTrace(id, "999999");
  EXPECT_EQ(future.exit_code, 5);
  EXPECT_THAT(future.err, HasSubstr("step 999999 of job j1: not kept; steps "));

  // A worker that dies: what the other did in the step that never ended is kept as well.
  const auto running = cluster_->WaitForStep(id, 21);
  ASSERT_TRUE(running.ok());
  cluster_->Kill("w1");
  const auto ended = cluster_->WaitForEnd(id);
  ASSERT_TRUE(ended.ok()) << ended.status();
  const ClientRun failed = RunTrace(id, absl::StrCat(ended->step() + 1));
  ASSERT_EQ(failed.exit_code, 0) << failed.err;
  const Trace trace = Read(failed.out);
  EXPECT_EQ(trace.threads.count({0, "compute"}), 1u);
}

TEST_F(TraceTest, APictureOfAStepIsAFileOrGoesToStdout) {
  StartCluster();
  const std::string id = RunToEnd(TracedJob());
  const ClientRun both = cluster_->Run({"trace", id, "--svg", "step.svg", "-o", "step.json"});
  ASSERT_EQ(both.exit_code, 0) << both.err;
  EXPECT_EQ(both.out, "");
  const ClientRun svg = cluster_->Run({"trace", id, "--svg", "-"});
  EXPECT_THAT(svg.out, HasSubstr("traced (j1), step 5, measured"));
  EXPECT_THAT(svg.out, HasSubstr(">recompute</text>"));
  const ClientRun none = cluster_->Run({"trace", id, "--steps", "6..7", "-o", "none.json"});
  EXPECT_EQ(none.exit_code, 5);
  EXPECT_THAT(none.err, HasSubstr("steps 6 to 7 of job j1: not all kept; steps 1 to 5 are"));
  EXPECT_FALSE(std::filesystem::exists(cluster_->dir() + "/none.json"));
}

// After a restart traces of jobs that had ended are still there.
TEST_F(TraceTest, OutlivesTheCoordinator) {
  StartCluster();
  const std::string id = RunToEnd(TracedJob());
  cluster_->KillCoordinator();
  ASSERT_TRUE(cluster_->RestartCoordinator().ok());
  const ClientRun run = RunTrace(id, "1..5");
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

}  // namespace
}  // namespace headrace
