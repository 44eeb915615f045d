// For tests of jobs that survive something: one cluster a suite, jobs that last long enough for it
// to happen, and what each comes to where nothing happens.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/outcome.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"

namespace headrace {

// 40 steps of some 25 ms: kSlowSteps is in the workers' environment.
inline TinyJob SurvivingJob(int stages, const std::string& checkpoint) {
  TinyJob job;
  job.name = "survivor";
  job.layers = 3;
  job.steps = 40;
  job.stages = stages;
  job.schedule = "1f1b";
  job.eval_every = 9;
  job.restart = true;
  job.checkpoint = absl::StrCat("  every_minutes: 0\n", checkpoint);
  return job;
}

class SurvivalTest : public testing::Test {
 protected:
  static std::vector<WorkerOptions> SlowWorkers(int count, bool cuttable = false) {
    std::vector<WorkerOptions> workers(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      WorkerOptions& worker = workers[static_cast<size_t>(i)];
      worker.name = absl::StrCat("w", i);
      worker.environment = {kSlowSteps};
      worker.cuttable = cuttable;
    }
    return workers;
  }
  static void StartCluster(const std::vector<WorkerOptions>& workers) {
    auto cluster = TestCluster::Start(workers);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = cluster->release();
    cluster_->WriteFile("tiny.txt", TinyText());
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
    undisturbed_.clear();
  }

  // Every worker, whatever the last test did to it.
  void SetUp() override {
    ASSERT_NE(cluster_, nullptr);
    ASSERT_TRUE(cluster_->WaitForFreeWorkers(num_workers(), absl::Seconds(40)).ok());
  }
  virtual int num_workers() const { return 3; }

  static std::string Submit(const TinyJob& job) {
    const auto id = cluster_->Submit(JobFileText(job));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or("");
  }
  // Submits, and waits until so many steps are done.
  static std::string SubmitUntil(const TinyJob& job, int64_t step) {
    const std::string id = Submit(job);
    const auto running = cluster_->WaitForStep(id, step);
    EXPECT_TRUE(running.ok()) << running.status();
    return id;
  }
  static nlohmann::json AwaitDone(const std::string& id) {
    const auto ended = cluster_->WaitForEnd(id, absl::Seconds(60));
    EXPECT_TRUE(ended.ok()) << ended.status();
    const v1::Job job = ended.value_or(v1::Job());
    EXPECT_EQ(job.state(), v1::JOB_STATE_DONE) << Standing(job);
    return cluster_->Describe(id);
  }

  // The same job on one worker, without checkpoints, where nothing happens.
  static const Outcome& Undisturbed(TinyJob job) {
    job.stages = 1;
    job.checkpoint.clear();
    const std::string text = JobFileText(job);
    if (const auto known = undisturbed_.find(text); known != undisturbed_.end()) {
      return known->second;
    }
    return undisturbed_[text] = OutcomeOf(AwaitDone(Submit(job)));
  }

  static std::string WorkerOf(const std::string& id, size_t stage) {
    const nlohmann::json job = cluster_->Describe(id);
    return job.at("placement").at(stage).at("worker");
  }
  static std::vector<int64_t> CheckpointSteps(const nlohmann::json& job) {
    std::vector<int64_t> steps;
    for (const nlohmann::json& checkpoint : job.at("checkpoints")) {
      steps.push_back(checkpoint.at("step"));
    }
    return steps;
  }
  // Waits for a checkpoint of this step or a later one; its step.
  static int64_t AwaitCheckpoint(const std::string& id, int64_t step) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (absl::Now() < deadline) {
      const std::vector<int64_t> steps = CheckpointSteps(cluster_->Describe(id));
      if (!steps.empty() && steps.back() >= step) return steps.back();
      absl::SleepFor(5 * kLook);
    }
    ADD_FAILURE() << "no checkpoint of step " << step << " or later";
    return 0;
  }
  static std::string Events(const std::string& id) {
    const ClientRun run = cluster_->Run({"logs", id});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  }
  static void Client(const std::vector<std::string>& arguments) {
    const ClientRun run = cluster_->Run(arguments);
    EXPECT_EQ(run.exit_code, 0) << testing::PrintToString(arguments) << ": " << run.err;
  }

  static TestCluster* cluster_;

 private:
  static std::map<std::string, Outcome> undisturbed_;  // by job file
};

inline TestCluster* SurvivalTest::cluster_ = nullptr;
inline std::map<std::string, Outcome> SurvivalTest::undisturbed_;

}  // namespace headrace
