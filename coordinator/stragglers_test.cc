#include "coordinator/stragglers.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

v1::Plan PlanOf(const std::vector<double>& forward_s) {
  v1::Plan plan;
  plan.set_micro_batches(2);
  for (size_t k = 0; k < forward_s.size(); ++k) {
    v1::StagePlan* stage = plan.add_stage();
    stage->set_worker("w" + std::to_string(k));
    stage->set_actions("0F0 0F1 0R0 0B0 0R1 0B1");
    stage->set_forward_s(forward_s[k]);
    stage->set_recompute_s(forward_s[k]);
    stage->set_backward_s(2 * forward_s[k]);  // 8 × forward_s a step
  }
  return plan;
}

v1::StepResult Took(int64_t number, const std::vector<double>& seconds) {
  v1::StepResult step;
  step.set_step(number);
  for (const double s : seconds) {
    v1::StageSeconds* stage = step.add_stage_seconds();
    stage->set_compute(0.75 * s);
    stage->set_recompute(0.25 * s);
  }
  return step;
}

TEST(StragglersTest, TellsOnceWhoLags) {
  Stragglers stragglers(PlanOf({0.125, 0.25, 0.125}));
  for (int step = 1; step <= 4; ++step) {
    EXPECT_EQ(stragglers.Add(Took(step, {3, 20, 3})), std::nullopt) << step;
  }
  EXPECT_EQ(stragglers.Add(Took(5, {3, 20, 3})),
            "worker w1 (stage 1) lags: it computed 20 s in step 5, 3.3 times the 6 s that its "
            "share of the plan takes at the others' speed, and so for 5 steps in a row");
  EXPECT_EQ(stragglers.Add(Took(6, {3, 20, 3})), std::nullopt);
}

TEST(StragglersTest, BlamesNobodyForAPlanThatIsWrongAboutAll) {
  Stragglers stragglers(PlanOf({0.001, 0.002}));
  for (int step = 1; step <= 9; ++step) {
    EXPECT_EQ(stragglers.Add(Took(step, {8, 16})), std::nullopt);
  }
}

TEST(StragglersTest, CountsStepsInARowOnly) {
  Stragglers stragglers(PlanOf({0.125, 0.125}));
  for (int step = 1; step <= 12; ++step) {
    EXPECT_EQ(stragglers.Add(Took(step, {1, step % 5 == 0 ? 1.0 : 9.0})), std::nullopt) << step;
  }
}

TEST(StragglersTest, OverlooksMilliseconds) {
  Stragglers stragglers(PlanOf({0.0001, 0.0001}));
  for (int step = 1; step <= 9; ++step) {
    EXPECT_EQ(stragglers.Add(Took(step, {0.001, 0.009})), std::nullopt) << step;
  }
}

TEST(StragglersTest, ACudaStagesSecondsTellNothing) {
  v1::Plan plan = PlanOf({0.125, 0.125, 0.125});
  plan.mutable_stage(0)->set_device("cuda");
  Stragglers stragglers(plan);
  for (int step = 1; step <= 4; ++step) {
    EXPECT_EQ(stragglers.Add(Took(step, {0.01, 1, 3})), std::nullopt) << step;
  }
  const std::optional<std::string> told = stragglers.Add(Took(5, {0.01, 1, 3}));
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->substr(0, 24), "worker w2 (stage 2) lags");
}

TEST(StragglersTest, OfOneStageThereIsNobodyToCompareWith) {
  Stragglers stragglers(PlanOf({0.125}));
  for (int step = 1; step <= 9; ++step) {
    EXPECT_EQ(stragglers.Add(Took(step, {99})), std::nullopt);
  }
}

}  // namespace
}  // namespace headrace
