#include "client/picture/plan_gantt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "common/file.h"

namespace headrace {
namespace {

constexpr char kGolden[] = "client/picture/tiny_plan.svg";

// F = R = 1 s and B = 2 s, as in GPipe's figure 2.
v1::Plan TinyPlan() {
  v1::Plan plan;
  plan.set_stages(2);
  plan.set_micro_batches(2);
  plan.set_schedule(v1::SCHEDULE_KIND_GPIPE);
  plan.set_recompute(v1::RECOMPUTE_MODE_ALWAYS);
  for (const char* actions : {"0F0 0F1 0R0 0B0 0R1 0B1", "1F0 1F1 1R0 1B0 1R1 1B1"}) {
    v1::StagePlan* stage = plan.add_stage();
    stage->set_stage(plan.stage_size() - 1);
    stage->set_actions(actions);
    stage->set_forward_s(1);
    stage->set_recompute_s(1);
    stage->set_backward_s(2);
  }
  plan.add_micro_batch_sequences(4);
  plan.add_micro_batch_sequences(4);
  plan.set_step_s(11);
  plan.set_bubble(0.2727);
  plan.set_ideal_bubble(1.0 / 3);
  return plan;
}

TEST(PlanGanttTest, EachStageWorksWhenTheReplaySaysAndWaitsOtherwise) {
  const auto gantt = PlanGantt(TinyPlan(), v1::PipelineSpec(), "tiny");
  ASSERT_TRUE(gantt.ok()) << gantt.status();
  ASSERT_EQ(gantt->rows.size(), 2u);
  std::string second;
  for (const Bar& bar : gantt->rows[1].bars) {
    second += std::string("FRBUEW").substr(static_cast<size_t>(bar.kind), 1) +
              std::to_string(static_cast<int>(bar.begin_s)) + "-" +
              std::to_string(static_cast<int>(bar.end_s)) + " ";
  }
  EXPECT_EQ(second, "W0-1 F1-2 F2-3 R3-4 B4-6 R6-7 B7-9 W9-11 ");
  EXPECT_EQ(gantt->subtitle,
            "K = 2 stages, M = 2 micro-batches, gpipe, recompute always. Step 11.0 s, bubble 27.3 "
            "%; (K−1)/(M+K−1) = 33.3 %");
}

TEST(PlanGanttTest, SmallerMicroBatchesTakeLess) {
  v1::Plan plan = TinyPlan();
  plan.set_micro_batch_sequences(1, 2);
  const auto gantt = PlanGantt(plan, v1::PipelineSpec(), "tiny");
  ASSERT_TRUE(gantt.ok()) << gantt.status();
  EXPECT_EQ(gantt->rows[0].bars[1].end_s, 1.5);
}

// HEADRACE_REWRITE=1 draws it anew: look at it.
TEST(PlanGanttTest, DrawsTheTinyPlanAsItAlwaysDid) {
  const auto gantt = PlanGantt(TinyPlan(), v1::PipelineSpec(), "tiny");
  ASSERT_TRUE(gantt.ok()) << gantt.status();
  const std::string svg = *DrawGantt(*gantt);
  if (std::getenv("HEADRACE_REWRITE") != nullptr) {
    std::ofstream(kGolden) << svg;
    return;
  }
  const absl::StatusOr<std::string> golden = ReadFile(kGolden);
  ASSERT_TRUE(golden.ok()) << golden.status();
  EXPECT_EQ(svg, *golden);
}

TEST(PlanGanttTest, RefusesAScheduleThatCannotRun) {
  v1::Plan plan = TinyPlan();
  plan.mutable_stage(1)->set_actions("1F1 1F0 1R0 1B0 1R1 1B1");
  plan.mutable_stage(0)->set_actions("0F0 0R0 0B0 0F1 0R1 0B1");
  EXPECT_EQ(PlanGantt(plan, v1::PipelineSpec(), "tiny").status().code(),
            absl::StatusCode::kFailedPrecondition);
  plan.mutable_stage(1)->set_actions("1F0");
  EXPECT_EQ(PlanGantt(plan, v1::PipelineSpec(), "tiny").status().code(),
            absl::StatusCode::kInvalidArgument);
  plan.mutable_stage(1)->set_actions("nonsense");
  EXPECT_EQ(PlanGantt(plan, v1::PipelineSpec(), "tiny").status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headrace
