// What the planner's tests ask of a plan.
#pragma once

#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "plan/layer_spec.h"
#include "plan/planner/planner.h"
#include "plan/planner/test_job.h"
#include "plan/schedule_check.h"

namespace headrace {

inline constexpr int64_t kPlenty = int64_t{1} << 40;

inline int64_t Total(const v1::MemoryBytes& m) {
  return m.weights() + m.gradients() + m.optimizer() + m.stash() + m.workspace() + m.link();
}

inline v1::Plan PlanOk(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers) {
  auto plan = PlanJob(spec, nullptr, workers);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : v1::Plan();
}

inline std::string Refusal(const v1::JobSpec& spec, const std::vector<PlanWorker>& workers) {
  const auto plan = PlanJob(spec, nullptr, workers);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << plan.status();
  return std::string(plan.status().message());
}

// Every promise of a plan that can be checked from the plan alone.
inline void ExpectSound(const v1::JobSpec& spec, const v1::Plan& plan,
                        const std::vector<PlanWorker>& workers) {
  const auto layers = BuildLayers(*ResolveModel(spec.model()));
  ASSERT_EQ(plan.stage_size(), plan.stages());
  Schedule schedule;
  std::set<std::string> used;
  int64_t next = 0, parameters = 0;
  for (int k = 0; k < plan.stages(); ++k) {
    const v1::StagePlan& stage = plan.stage(k);
    EXPECT_EQ(stage.stage(), k);
    EXPECT_EQ(stage.first_layer(), next);
    EXPECT_LT(stage.first_layer(), stage.end_layer());
    next = stage.end_layer();
    EXPECT_TRUE(used.insert(stage.worker()).second) << stage.worker();
    EXPECT_LE(Total(stage.memory()), stage.memory_limit_bytes());
    EXPECT_GE(stage.forward_s(), 0);  // 0: the head alone, which works in backward only
    EXPECT_GT(stage.backward_s(), stage.forward_s());
    parameters += stage.parameters();
    auto actions = ParseActions(stage.actions());
    ASSERT_TRUE(actions.ok()) << actions.status();
    schedule.push_back(*std::move(actions));
  }
  EXPECT_EQ(next, static_cast<int64_t>(layers.size()));
  EXPECT_EQ(plan.parameters(), parameters);
  EXPECT_EQ(plan.layer_names_size(), static_cast<int>(layers.size()));
  int64_t sequences = 0;
  for (const int64_t size : plan.micro_batch_sequences()) sequences += size;
  EXPECT_EQ(sequences, spec.training().batch_size());
  EXPECT_TRUE(CheckSchedule(schedule, static_cast<int>(plan.micro_batches()), 1).ok());
  EXPECT_EQ(plan.grid(), DrawGrid(schedule));
}

inline double CpuSeconds(const std::function<void()>& work) {
  const std::clock_t start = std::clock();  // of this process: others may load the machine
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

}  // namespace headrace
