#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/planner/planner_testing.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// So many different workers that their order is chosen by a rule.
TEST(PlannerScaleTest, ManyDifferentWorkersArePlannedAndRefused) {
  std::vector<PlanWorker> workers;
  for (int i = 0; i < 30; ++i) {
    workers.push_back({absl::StrCat("w", i), 10e9 * (1 + i), 200'000 + 1000 * i, 1 + i % 3});
  }
  EXPECT_THAT(Refusal(SmallGpt2(), workers), HasSubstr("are missing"));
  for (PlanWorker& worker : workers) worker.memory_limit_bytes *= 100;
  const v1::JobSpec spec = SmallGpt2();
  ExpectSound(spec, PlanOk(spec, workers), workers);
}

// Advice on a deep model took seconds: hundreds of variations, each with a thousand layers built
// anew.
TEST(PlannerScaleTest, AThousandLayersArePlannedAndRefusedAtOnce) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_model()->set_n_layer(998);
  spec.mutable_training()->set_batch_size(64);
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_NEVER);
  for (const int64_t stages : {0, 4}) {
    spec.mutable_pipeline()->set_stages(stages);
    int64_t largest = 0;
    const v1::Plan plan = PlanOk(spec, EqualWorkers(4, kPlenty));
    for (const auto& stage : plan.stage()) largest = std::max(largest, Total(stage.memory()));
    for (const int64_t memory : {kPlenty, largest / 2, largest / 20, int64_t{1000}}) {
      const auto workers = EqualWorkers(4, memory);
      const double took_s = CpuSeconds([&] { PlanJob(spec, nullptr, workers).IgnoreError(); });
      // Without a sanitizer 0.03 s; they take up to 20 times as long.
      EXPECT_LT(took_s, 20) << stages << " stages, " << memory << " bytes";
    }
  }
}

// Ten thousand layers on a thousand workers: the whole plan, text and all.
TEST(PlannerScaleTest, AThousandStagesPlanInSeconds) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_model()->set_n_layer(9'998);
  spec.mutable_pipeline()->set_stages(1'000);
  v1::Plan plan;
  const double took_s = CpuSeconds([&] { plan = PlanOk(spec, EqualWorkers(1'000, kPlenty)); });
  EXPECT_EQ(plan.stages(), 1'000);
  EXPECT_LT(took_s, 150);  // 0.5 s; on a busy machine a sanitizer takes 50 times as long
}

// A thousand workers no two of which are alike: each has work by its speed.
TEST(PlannerScaleTest, AThousandUnlikeWorkersPlanInSeconds) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_model()->set_n_layer(9'998);
  spec.mutable_pipeline()->set_stages(1'000);
  spec.mutable_training()->set_micro_batches(2);  // the grid is drawn of so many
  std::vector<PlanWorker> workers = EqualWorkers(1'000, kPlenty);
  double speed = 0;
  for (int i = 0; i < 1'000; ++i) {
    workers[i].flops_per_second = 1e9 * (1 + 0.003 * i);  // so slow that no link counts
    workers[i].memory_limit_bytes += i;
    speed += 1 + 0.003 * i;
  }
  v1::Plan plan;
  const double took_s = CpuSeconds([&] { plan = PlanOk(spec, workers); });
  EXPECT_LT(took_s, 150);  // 0.5 s; on a busy machine a sanitizer takes 50 times as long
  ExpectSound(spec, plan, workers);
  double slowest_s = 0, all_s = 0;  // and what one worker of 1 GFLOP/s would take
  for (int k = 0; k < plan.stages(); ++k) {
    const v1::StagePlan& stage = plan.stage(k);
    const double stage_s = stage.forward_s() + stage.recompute_s() + stage.backward_s();
    slowest_s = std::max(slowest_s, stage_s);
    all_s += stage_s * (1 + 0.003 * std::stoi(stage.worker().substr(1)));
  }
  EXPECT_LT(slowest_s, 1.1 * all_s / speed);  // whole layers, some ten a worker
}

// More numbers of stages than are tried: the one chosen is as good as the best of all.
TEST(PlannerScaleTest, AutoFindsTheBestOfManyNumbersOfStages) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_model()->set_n_layer(70);
  spec.mutable_training()->set_batch_size(16);
  spec.mutable_training()->set_micro_batches(16);
  spec.mutable_pipeline()->set_schedule(v1::SCHEDULE_KIND_1F1B);
  // Links that hardly count; that set a number between; that leave one worker.
  for (const double flops_per_second : {1e8, 2e10, 1e15}) {
    const auto workers = EqualWorkers(60, kPlenty, flops_per_second);
    double fastest_s = 1e9;
    for (int64_t stages = 1; stages <= 60; ++stages) {
      spec.mutable_pipeline()->set_stages(stages);
      fastest_s = std::min(fastest_s, PlanOk(spec, workers).step_s());
    }
    spec.mutable_pipeline()->set_stages(0);
    const v1::Plan plan = PlanOk(spec, workers);
    EXPECT_LT(plan.step_s(), 1.02 * fastest_s) << flops_per_second << ": " << plan.stages();
  }
}

TEST(PlannerScaleTest, GenerateFindsTheFewestOfManyStages) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_model()->set_n_layer(98);
  const int64_t whole = Total(PlanGenerate(spec, EqualWorkers(1, kPlenty))->stage(0).memory());
  const auto workers = EqualWorkers(90, whole / 20);
  const auto plan = PlanGenerate(spec, workers);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GE(plan->stages(), 20);
  EXPECT_FALSE(
      PlanGenerate(spec, EqualWorkers(static_cast<int>(plan->stages()) - 1, whole / 20)).ok());
}

}  // namespace
}  // namespace headrace
