#include "plan/planner/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "plan/planner/schedule/schedule.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

ReplayOptions Costs(int stages, StageCosts costs, int credits = 1000) {
  ReplayOptions options;
  options.costs.assign(stages, costs);
  options.credits = credits;
  return options;
}

Simulation SimulateJob(v1::ScheduleKind kind, const ScheduleShape& shape,
                       const ReplayOptions& options) {
  auto simulation = Simulate(MakeSchedule(kind, shape), shape.micro_batches, options);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return *std::move(simulation);
}

// GPipe §2.3: recompute can start before the gradient arrives. F = R = 1, B = 2: 149 units instead
// of the (M + K − 1) · 4 = 156 of a recompute that waits, and 53 instead of 60.
TEST(SimulateTest, EarlyRecomputeHidesInTheDrain) {
  const ReplayOptions costs = Costs(8, {1, 1, 2}, 2);
  for (const auto kind : {v1::SCHEDULE_KIND_GPIPE, v1::SCHEDULE_KIND_1F1B}) {
    const Simulation large = SimulateJob(kind, {8, 32, v1::RECOMPUTE_MODE_ALWAYS}, costs);
    EXPECT_DOUBLE_EQ(large.step_s, 149);
    EXPECT_NEAR(large.bubble, 0.141, 0.0005);
    EXPECT_DOUBLE_EQ(SimulateJob(kind, {8, 8, v1::RECOMPUTE_MODE_ALWAYS}, costs).step_s, 53);
  }
}

// What a late recompute would take, with the same simulator: R only once the gradient is there,
// that is a backward of 3.
TEST(SimulateTest, LateRecomputeDoesNot) {
  const auto late_s = [](int micro_batches) {
    return SimulateJob(v1::SCHEDULE_KIND_GPIPE, {8, micro_batches, v1::RECOMPUTE_MODE_NEVER},
                       Costs(8, {1, 0, 3}, 2))
        .step_s;
  };
  EXPECT_DOUBLE_EQ(late_s(32), 156);
  EXPECT_DOUBLE_EQ(late_s(8), 60);
}

TEST(SimulateTest, BothSchedulesHaveTheIdealBubbleWithoutRecompute) {
  for (const auto kind : {v1::SCHEDULE_KIND_GPIPE, v1::SCHEDULE_KIND_1F1B}) {
    const Simulation simulation =
        SimulateJob(kind, {8, 32, v1::RECOMPUTE_MODE_NEVER}, Costs(8, {1, 1, 2}));
    EXPECT_DOUBLE_EQ(simulation.step_s, 3 * (32 + 8 - 1));
    EXPECT_DOUBLE_EQ(simulation.bubble, 7.0 / 39);
    for (const StageUse& use : simulation.stages) {
      EXPECT_DOUBLE_EQ(use.busy_s, 96);
      EXPECT_DOUBLE_EQ(use.idle_s, 21);
    }
  }
}

TEST(SimulateTest, OneStageNeverIdles) {
  const Simulation simulation =
      SimulateJob(v1::SCHEDULE_KIND_GPIPE, {1, 5, v1::RECOMPUTE_MODE_ALWAYS}, Costs(1, {1, 1, 2}));
  EXPECT_DOUBLE_EQ(simulation.step_s, 20);
  EXPECT_DOUBLE_EQ(simulation.bubble, 0);
}

TEST(SimulateTest, PeaksAreThoseOfTheLists) {
  const Simulation simulation =
      SimulateJob(v1::SCHEDULE_KIND_1F1B, {3, 5, v1::RECOMPUTE_MODE_ALWAYS}, Costs(3, {1, 1, 2}));
  EXPECT_EQ(simulation.stages[0].peak, (std::vector<StashLevel>{{3, 1}}));
  EXPECT_EQ(simulation.stages[2].peak, (std::vector<StashLevel>{{1, 1}}));
}

// Two stages, one micro-batch: F 1, activation on its way 10, F 1, B 2, gradient 20, B 2.
TEST(SimulateTest, CountsTheWayBetweenStages) {
  StageCosts costs = {1, 1, 2};
  costs.activation_s = 10;
  costs.gradient_s = 20;
  const Simulation simulation =
      SimulateJob(v1::SCHEDULE_KIND_GPIPE, {2, 1, v1::RECOMPUTE_MODE_NEVER}, Costs(2, costs));
  EXPECT_DOUBLE_EQ(simulation.step_s, 1 + 10 + 1 + 2 + 20 + 2);
}

// The edge carries one tensor at a time: three activations of 10 s each leave it at 11, 21 and 31.
TEST(SimulateTest, AnEdgeCarriesOneTensorAtATime) {
  StageCosts costs = {1, 0, 0};
  costs.activation_s = 10;
  const Simulation simulation =
      SimulateJob(v1::SCHEDULE_KIND_GPIPE, {2, 3, v1::RECOMPUTE_MODE_NEVER}, Costs(2, costs));
  EXPECT_DOUBLE_EQ(simulation.step_s, 31 + 1);
}

// A slow receiver holds its sender back once the credits are used up: stage 0 may run its F2 only
// to wait with it until stage 1 has taken F1.
TEST(SimulateTest, ASenderWaitsForItsCredit) {
  ReplayOptions options;
  options.costs = {{1, 0, 1}, {10, 0, 1}};
  const ScheduleShape shape = {2, 4, v1::RECOMPUTE_MODE_NEVER};
  const auto last_forward_s = [&](int credits) {
    options.credits = credits;
    const Replay replay = ReplaySchedule(MakeSchedule(v1::SCHEDULE_KIND_GPIPE, shape), 4, options);
    return replay.times[0][3].start_s;  // 0F3
  };
  EXPECT_DOUBLE_EQ(last_forward_s(4), 3);   // never held back
  EXPECT_DOUBLE_EQ(last_forward_s(1), 11);  // F2 leaves when F1 is taken, at 1 + 10
}

// one_f_one_b.h: with C = 4 and links of 1 + 1, a lead of 1 + 2/4 hides them, rounded up: 2.
// Without, each C lasts up to 2 longer.
TEST(SimulateTest, ALeadHidesTheLinks) {
  StageCosts costs = {1, 1, 2};
  costs.activation_s = costs.gradient_s = 1;
  ScheduleShape shape = {4, 32, v1::RECOMPUTE_MODE_ALWAYS};
  const double ideal_s = 32 * 4 + 3 * (1 + 2 + 2 * 1);  // its own work, once filled and drained
  EXPECT_GT(SimulateJob(v1::SCHEDULE_KIND_1F1B, shape, Costs(4, costs)).step_s, 1.15 * ideal_s);
  shape.lead = 2;
  EXPECT_LE(SimulateJob(v1::SCHEDULE_KIND_1F1B, shape, Costs(4, costs)).step_s, 1.02 * ideal_s);
}

TEST(SimulateTest, SmallerMicroBatchesCostLess) {
  ReplayOptions options = Costs(1, {1, 0, 2});
  options.scale = {1, 0.5};
  EXPECT_DOUBLE_EQ(
      SimulateJob(v1::SCHEDULE_KIND_GPIPE, {1, 2, v1::RECOMPUTE_MODE_NEVER}, options).step_s, 4.5);
}

TEST(SimulateTest, ReportsDeadlocksAndBrokenLists) {
  const Schedule deadlock = {*ParseActions("0F0 0B0 0F1 0B1"), *ParseActions("1F0 1F1 1B0 1B1")};
  const auto stuck = Simulate(deadlock, 2, Costs(2, {1, 1, 2}));
  EXPECT_EQ(stuck.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(stuck.status().message()), HasSubstr("[0B0]"));
  const auto broken = Simulate({*ParseActions("0B0 0F0")}, 1, Costs(1, {1, 1, 2}));
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SimulateTest, AThousandStagesTakeSeconds) {
  const Simulation simulation = SimulateJob(
      v1::SCHEDULE_KIND_1F1B, {1000, 400, v1::RECOMPUTE_MODE_NEVER}, Costs(1000, {1, 1, 2}, 2));
  EXPECT_DOUBLE_EQ(simulation.step_s, 3 * (1000 + 400 - 1));
}

}  // namespace
}  // namespace headrace
