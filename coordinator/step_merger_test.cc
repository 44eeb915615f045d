#include "coordinator/step_merger.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

v1::StageStep Part(int64_t step, double wall, double compute, double recompute, double optimizer) {
  v1::StageStep part;
  part.set_step(step);
  part.mutable_seconds()->set_wall(wall);
  part.mutable_seconds()->set_compute(compute);
  part.mutable_seconds()->set_recompute(recompute);
  part.mutable_seconds()->set_optimizer(optimizer);
  return part;
}

v1::StageStep LastPart(int64_t step, double loss) {
  v1::StageStep part = Part(step, 2.0, 1.0, 0, 0);
  part.set_loss(loss);
  part.set_tokens(64);
  part.set_gradient_norm(3);
  part.set_learning_rate(0.5);
  return part;
}

TEST(StepMergerTest, TakesTheLossFromTheLastStageAndSecondsFromEach) {
  StepMerger merger(2);
  ASSERT_FALSE(merger.Add(1, LastPart(1, 5.5))->has_value());
  const auto merged = merger.Add(0, Part(1, 4.0, 1.0, 1.5, 0.5));
  ASSERT_TRUE(merged.ok() && merged->has_value());
  const v1::StepResult& step = **merged;
  EXPECT_EQ(step.step(), 1);
  EXPECT_EQ(step.loss(), 5.5);
  EXPECT_EQ(step.tokens(), 64);
  EXPECT_EQ(step.gradient_norm(), 3);
  EXPECT_EQ(step.learning_rate(), 0.5);
  EXPECT_EQ(step.seconds(), 4.0);
  EXPECT_DOUBLE_EQ(step.bubble(), (1.0 / 4 + 1.0 / 2) / 2);
  EXPECT_FALSE(step.has_validation_loss());
  ASSERT_EQ(step.stage_seconds_size(), 2);
  EXPECT_EQ(step.stage_seconds(1).stage(), 1);
}

TEST(StepMergerTest, PassesTheValidationLossOn) {
  StepMerger merger(1);
  v1::StageStep part = LastPart(1, 5.5);
  part.set_validation_loss(6.25);
  EXPECT_EQ((**merger.Add(0, part)).validation_loss(), 6.25);
}

TEST(StepMergerTest, LetsStagesBeAStepApart) {
  StepMerger merger(2);
  ASSERT_FALSE(merger.Add(0, Part(1, 1, 1, 0, 0))->has_value());
  ASSERT_FALSE(merger.Add(0, Part(2, 1, 1, 0, 0))->has_value());
  EXPECT_EQ((**merger.Add(1, LastPart(1, 5))).step(), 1);
  EXPECT_EQ((**merger.Add(1, LastPart(2, 4))).step(), 2);
}

TEST(StepMergerTest, DropsWhatIsMergedAlready) {
  StepMerger merger(1);
  ASSERT_TRUE(merger.Add(0, LastPart(1, 5))->has_value());
  EXPECT_FALSE(merger.Add(0, LastPart(1, 5))->has_value());
}

TEST(StepMergerTest, BeginsAfterAStep) {
  StepMerger merger(1, 7);
  EXPECT_FALSE(merger.Add(0, LastPart(7, 5))->has_value());
  EXPECT_EQ(merger.merged(), 7);
  EXPECT_TRUE(merger.Add(0, LastPart(8, 5))->has_value());
  EXPECT_EQ(merger.merged(), 8);
  EXPECT_TRUE(merger.Add(0, LastPart(12, 5))->has_value()) << "steps are left out";
}

TEST(StepMergerTest, TellsWhyAStepWasNotApplied) {
  StepMerger merger(2);
  v1::StageStep part = Part(1, 1, 1, 0, 0);
  part.set_skipped("the loss is NaN");
  ASSERT_FALSE(merger.Add(0, part)->has_value());
  EXPECT_EQ((**merger.Add(1, LastPart(1, 5))).skipped(), "the loss is NaN");
}

TEST(StepMergerTest, RefusesWhatCannotBe) {
  StepMerger merger(2);
  EXPECT_EQ(merger.Add(2, LastPart(1, 5)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(merger.Add(-1, LastPart(1, 5)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(merger.Add(0, Part(0, 1, 1, 0, 0)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(merger.Add(1, Part(1, 1, 1, 0, 0)).status().code(), absl::StatusCode::kInvalidArgument)
      << "the last stage without a loss";
  ASSERT_TRUE(merger.Add(0, Part(1, 1, 1, 0, 0)).ok());
  EXPECT_EQ(merger.Add(0, Part(1, 1, 1, 0, 0)).status().code(), absl::StatusCode::kInvalidArgument)
      << "twice";
  EXPECT_EQ(merger.Add(0, Part(StepMerger::kMaxOpenSteps + 1, 1, 1, 0, 0)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace headrace
