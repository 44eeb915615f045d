#include "plan/planner/schedule/schedule.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "plan/stage_memory.h"

namespace headrace {
namespace {

constexpr auto kAlways = v1::RECOMPUTE_MODE_ALWAYS;
constexpr auto kExceptLast = v1::RECOMPUTE_MODE_EXCEPT_LAST;
constexpr auto kNever = v1::RECOMPUTE_MODE_NEVER;

std::string Draw(v1::ScheduleKind kind, const ScheduleShape& shape) {
  std::string text;
  for (const auto& actions : MakeSchedule(kind, shape)) {
    absl::StrAppend(&text, ToText(actions), "\n");
  }
  return text;
}

TEST(GpipeTest, FillsThenDrainsAscending) {
  EXPECT_EQ(Draw(v1::SCHEDULE_KIND_GPIPE, {2, 3, kNever}),
            "0F0 0F1 0F2 0B0 0B1 0B2\n"
            "1F0 1F1 1F2 1B0 1B1 1B2\n");
}

TEST(GpipeTest, RecomputesBeforeItWaitsForTheGradient) {
  EXPECT_EQ(Draw(v1::SCHEDULE_KIND_GPIPE, {2, 3, kAlways}),
            "0F0 0F1 0F2 0R0 0B0 0R1 0B1 0R2 0B2\n"
            "1F0 1F1 1F2 1R0 1B0 1R1 1B1 1R2 1B2\n");
}

TEST(GpipeTest, ExceptLastKeepsTheLastMicroBatch) {
  EXPECT_EQ(Draw(v1::SCHEDULE_KIND_GPIPE, {2, 3, kExceptLast}),
            "0F0 0F1 0F2 0R0 0B0 0R1 0B1 0B2\n"
            "1F0 1F1 1F2 1R0 1B0 1R1 1B1 1B2\n");
}

TEST(GpipeTest, ASecondWorkingSetRecomputesOneAheadButNotOnTheLastStage) {
  EXPECT_EQ(Draw(v1::SCHEDULE_KIND_GPIPE, {2, 3, kAlways, 1}),
            "0F0 0F1 0F2 0R0 0R1 0B0 0R2 0B1 0B2\n"
            "1F0 1F1 1F2 1R0 1B0 1R1 1B1 1R2 1B2\n");
}

TEST(OneForwardOneBackwardTest, WarmsUpAlternatesAndDrains) {
  EXPECT_EQ(Draw(v1::SCHEDULE_KIND_1F1B, {3, 4, kNever}),
            "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
            "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
            "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
}

TEST(OneForwardOneBackwardTest, ALeadHoldsMoreOnEveryStageButTheLast) {
  ScheduleShape shape = {3, 6, kNever};
  shape.lead = 2;
  EXPECT_EQ(Draw(v1::SCHEDULE_KIND_1F1B, shape),
            "0F0 0F1 0F2 0F3 0F4 0B0 0F5 0B1 0B2 0B3 0B4 0B5\n"
            "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1B4 1B5\n"
            "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2F4 2B4 2F5 2B5\n");
}

TEST(OneForwardOneBackwardTest, RecomputesBehindTheForwardTheNextStageNeeds) {
  EXPECT_EQ(Draw(v1::SCHEDULE_KIND_1F1B, {2, 3, kAlways}),
            "0F0 0F1 0R0 0B0 0F2 0R1 0B1 0R2 0B2\n"
            "1F0 1R0 1B0 1F1 1R1 1B1 1F2 1R2 1B2\n");
  EXPECT_EQ(Draw(v1::SCHEDULE_KIND_1F1B, {2, 3, kExceptLast}),
            "0F0 0F1 0R0 0B0 0F2 0R1 0B1 0B2\n"
            "1F0 1R0 1B0 1F1 1R1 1B1 1F2 1B2\n");
  EXPECT_EQ(Draw(v1::SCHEDULE_KIND_1F1B, {2, 3, kAlways, 1}),
            "0F0 0F1 0R0 0R1 0B0 0F2 0R2 0B1 0B2\n"
            "1F0 1R0 1B0 1F1 1R1 1B1 1F2 1R2 1B2\n");
}

TEST(ScheduleTest, OneStageAndOneMicroBatchAreOrdinary) {
  for (const auto kind : {v1::SCHEDULE_KIND_GPIPE, v1::SCHEDULE_KIND_1F1B}) {
    EXPECT_EQ(Draw(kind, {1, 1, kAlways}), "0F0 0R0 0B0\n");
    EXPECT_EQ(Draw(kind, {1, 1, kExceptLast}), "0F0 0B0\n");
    EXPECT_EQ(Draw(kind, {2, 1, kNever}), "0F0 0B0\n1F0 1B0\n");
  }
}

// M < K among them: fewer micro-batches than stages must neither hang nor leave a stage out. A lead
// takes as many credits.
TEST(ScheduleTest, EverySmallScheduleRunsWithAsManyCreditsAsItsLead) {
  for (const auto kind : {v1::SCHEDULE_KIND_GPIPE, v1::SCHEDULE_KIND_1F1B}) {
    for (const auto mode : {kAlways, kExceptLast, kNever}) {
      for (int stages = 1; stages <= 9; ++stages) {
        for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
          for (const auto& [extra, lead] : {std::pair{0, 1}, {1, 1}, {2, 1}, {0, 2}, {1, 3}}) {
            const ScheduleShape shape = {stages, micro_batches, mode, extra, lead};
            const absl::Status status =
                CheckSchedule(MakeSchedule(kind, shape), micro_batches, lead);
            EXPECT_TRUE(status.ok()) << status << "\n" << Draw(kind, shape);
          }
        }
      }
    }
  }
}

// GPipe holds every boundary, 1F1B K − k of them; one working set with recompute, one more with
// except_last (the kept one), and all peaks fall together, so pools of slots fit the predicted
// bytes.
TEST(ScheduleTest, StashesWhatThePaperSays) {
  constexpr int kStages = 4, kMicroBatches = 6;
  for (int k = 0; k < kStages; ++k) {
    const int in_flight = kStages - k;
    const auto levels = [&](v1::ScheduleKind kind, v1::RecomputeMode mode) {
      return StashLevels(MakeActions(kind, {kStages, kMicroBatches, mode}, k));
    };
    using Levels = std::vector<StashLevel>;
    EXPECT_EQ(levels(v1::SCHEDULE_KIND_GPIPE, kAlways), (Levels{{kMicroBatches, 1}}));
    EXPECT_EQ(levels(v1::SCHEDULE_KIND_GPIPE, kExceptLast), (Levels{{kMicroBatches, 2}}));
    EXPECT_EQ(levels(v1::SCHEDULE_KIND_GPIPE, kNever), (Levels{{kMicroBatches, kMicroBatches}}));
    EXPECT_EQ(levels(v1::SCHEDULE_KIND_1F1B, kAlways), (Levels{{in_flight, 1}}));
    EXPECT_EQ(levels(v1::SCHEDULE_KIND_1F1B, kExceptLast),
              (Levels{{in_flight, in_flight > 1 ? 2 : 1}}));
    EXPECT_EQ(levels(v1::SCHEDULE_KIND_1F1B, kNever), (Levels{{in_flight, in_flight}}));
  }
}

}  // namespace
}  // namespace headrace
