#include "plan/planner/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "plan/planner/planner_testing.h"

namespace headrace {
namespace {

TEST(PlannerTest, FillsInEverything) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  const auto workers = EqualWorkers(2, kPlenty);
  const v1::Plan plan = PlanOk(spec, workers);
  ExpectSound(spec, plan, workers);
  EXPECT_EQ(plan.stages(), 2);
  EXPECT_EQ(plan.micro_batches(), 4);
  EXPECT_EQ(plan.schedule(), v1::SCHEDULE_KIND_GPIPE);
  EXPECT_EQ(plan.recompute(), v1::RECOMPUTE_MODE_ALWAYS);
  EXPECT_DOUBLE_EQ(plan.ideal_bubble(), 1.0 / 5);
  EXPECT_GT(plan.step_s(), 0);
  EXPECT_GT(plan.bubble(), 0);
  EXPECT_EQ(plan.stage(0).worker(), "w0");
  EXPECT_EQ(plan.stage(1).worker(), "w1");
  EXPECT_EQ(plan.stage(1).actions(), "1F0 1F1 1F2 1F3 1R0 1B0 1R1 1B1 1R2 1B2 1R3 1B3");
  EXPECT_EQ(plan.layer_names(0), "embedding");
  EXPECT_EQ(plan.layer_names(7), "head");
}

TEST(PlannerTest, EverySettingGivesASoundPlan) {
  for (v1::JobSpec spec : {SmallGpt2(), SmallLlama()}) {
    for (const auto schedule : {v1::SCHEDULE_KIND_GPIPE, v1::SCHEDULE_KIND_1F1B}) {
      for (const auto mode :
           {v1::RECOMPUTE_MODE_ALWAYS, v1::RECOMPUTE_MODE_EXCEPT_LAST, v1::RECOMPUTE_MODE_NEVER}) {
        for (int64_t m : {1, 3, 8}) {  // 8 sequences: M = 1, uneven parts, one each; M < K too
          for (int64_t stages : {0, 1, 2, 4, 7}) {
            spec.mutable_pipeline()->set_schedule(schedule);
            spec.mutable_pipeline()->set_recompute(mode);
            spec.mutable_pipeline()->set_stages(stages);
            spec.mutable_training()->set_micro_batches(m);
            const auto workers = EqualWorkers(7, kPlenty);
            SCOPED_TRACE(spec.ShortDebugString());
            ExpectSound(spec, PlanOk(spec, workers), workers);
          }
        }
      }
    }
  }
}

// C is about 0.4 ms here, and a link takes 0.2 ms and more each way.
TEST(PlannerTest, OneForwardOneBackwardRunsAheadOfItsLinksWhereThatPaysAndFits) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_schedule(v1::SCHEDULE_KIND_1F1B);
  spec.mutable_pipeline()->set_stages(3);
  spec.mutable_training()->set_micro_batches(8);
  const auto starts_with = [&](double flops_per_second, const std::string& actions) {
    const v1::Plan plan = PlanOk(spec, EqualWorkers(3, kPlenty, flops_per_second));
    return plan.stage(0).actions().substr(0, actions.size()) == actions;
  };
  EXPECT_TRUE(starts_with(50e9, "0F0 0F1 0F2 0F3 0F4 0R0 "));
  EXPECT_TRUE(starts_with(1e6, "0F0 0F1 0F2 0R0 "));  // no link counts beside these seconds
  spec.mutable_pipeline()->set_credits(1);
  EXPECT_TRUE(starts_with(50e9, "0F0 0F1 0F2 0R0 "));
}

TEST(PlannerTest, DeclaredLinksCount) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  std::vector<PlanWorker> workers = EqualWorkers(2, kPlenty);
  const double fast_s = PlanOk(spec, workers).step_s();
  for (PlanWorker& worker : workers) worker.link = {1e6, 0.5};
  const v1::Plan slow = PlanOk(spec, workers);
  const double boundary_s = 0.5 + 2 * 32 * 64 * 4 / 1e6;
  EXPECT_NEAR(slow.stage(0).activation_s(), boundary_s, 1e-9);
  EXPECT_EQ(slow.stage(0).gradient_s(), 0);
  EXPECT_NEAR(slow.stage(1).gradient_s(), boundary_s, 1e-9);
  EXPECT_EQ(slow.stage(1).activation_s(), 0);
  EXPECT_GT(slow.step_s(), fast_s + 2 * boundary_s);
  // Left to itself, the planner keeps the job off such links.
  spec.mutable_pipeline()->set_stages(0);
  EXPECT_EQ(PlanOk(spec, workers).stages(), 1);
}

TEST(PlannerTest, AutoPicksTheFastestNumberOfStages) {
  v1::JobSpec spec = SmallGpt2();
  const auto workers = EqualWorkers(4, kPlenty, 1e9);
  double fastest_s = 1e9;
  for (int64_t stages = 1; stages <= 4; ++stages) {
    spec.mutable_pipeline()->set_stages(stages);
    fastest_s = std::min(fastest_s, PlanOk(spec, workers).step_s());
  }
  spec.mutable_pipeline()->set_stages(0);
  const v1::Plan plan = PlanOk(spec, workers);
  EXPECT_EQ(plan.step_s(), fastest_s);
  EXPECT_EQ(plan.stages(), 4);
  // So fast that only the links count: one stage.
  EXPECT_EQ(PlanOk(spec, EqualWorkers(4, kPlenty, 1e15)).stages(), 1);
}

TEST(PlannerTest, GenerateTakesAsFewStagesAsFit) {
  const v1::JobSpec spec = SmallGpt2();
  const v1::Plan one = *PlanGenerate(spec, EqualWorkers(3, kPlenty));
  EXPECT_EQ(one.stages(), 1);
  EXPECT_EQ(one.stage(0).end_layer(), 8);
  EXPECT_EQ(one.micro_batch_sequences(0), 1);
  EXPECT_EQ(one.stage(0).memory().gradients(), 0);
  const auto two = PlanGenerate(spec, EqualWorkers(3, Total(one.stage(0).memory()) - 1));
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->stages(), 2);
  EXPECT_EQ(PlanGenerate(spec, EqualWorkers(3, 1000)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(PlanGenerate(spec, {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(PlannerTest, ChecksTheJobAndItsData) {
  v1::JobSpec spec = SmallGpt2();
  v1::Dataset dataset;
  dataset.set_num_tokens(10);
  EXPECT_EQ(PlanJob(spec, &dataset, EqualWorkers(1, kPlenty)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headrace
