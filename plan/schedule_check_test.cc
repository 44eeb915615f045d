#include "plan/schedule_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

using ::testing::HasSubstr;

std::vector<Action> Parse(const char* text) {
  auto actions = ParseActions(text);
  EXPECT_TRUE(actions.ok()) << actions.status();
  return *std::move(actions);
}

Schedule ParseAll(const std::vector<const char*>& rows) {
  Schedule schedule;
  for (const char* row : rows) schedule.push_back(Parse(row));
  return schedule;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(CheckActionsTest, AcceptsEveryOrderThatKeepsTheRules) {
  for (const char* list : {"1F0 1F1 1B0 1B1", "1F0 1B0 1F1 1B1", "1F1 1F0 1R0 1B0 1R1 1B1",
                           "1F0 1F1 1R0 1R1 1B0 1B1", "1F0 1R0 1F1 1B0 1B1"}) {
    EXPECT_TRUE(CheckActions(Parse(list), 1, 2).ok()) << list;
  }
}

TEST(CheckActionsTest, NamesTheFaultAndMarksTheAction) {
  const struct {
    const char* list;
    const char* message;
  } kRows[] = {
      {"1F0 1F1 0B0 1B1", "action 3 (0B0) is of chunk 0, not 1: 1F0  1F1 [0B0] 1B1"},
      {"1F0 1F2 1B0 1B1", "action 2 (1F2) is of a micro-batch outside 0 to 1: 1F0 [1F2] 1B0  1B1"},
      {"1F0 1F0 1B0 1B1", "action 2 (1F0) repeats a forward"},
      {"1R0 1F0 1F1 1B0 1B1", "action 1 (1R0) comes before its forward"},
      {"1F0 1F1 1B0 1R0 1B1", "action 4 (1R0) comes after its backward"},
      {"1F0 1R0 1R0 1B0 1F1 1B1", "action 3 (1R0) repeats a recompute"},
      {"1B0 1F0 1F1 1B1", "action 1 (1B0) comes before its forward"},
      {"1F0 1F1 1B0 1B0", "action 4 (1B0) repeats a backward"},
      {"1F0 1F1 1B1 1B0", "action 3 (1B1) is out of order: the next backward is of micro-batch 0"},
      {"1F0 1F1 1R0 1B0", "action 4 (1B0) is the last, but micro-batch 1 has no B"},
      {"1F0 1R0 1B0", "stage 1: 3 actions; 2 micro-batches need an F and a B each"},
      {"", "stage 1: 0 actions"},
  };
  for (const auto& row : kRows) {
    const absl::Status status = CheckActions(Parse(row.list), 1, 2);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.list;
    EXPECT_THAT(Message(status), HasSubstr(row.message)) << row.list;
  }
  EXPECT_THAT(Message(CheckActions({}, 0, 0)), HasSubstr("0 micro-batches; expected 1 or more"));
  EXPECT_THAT(Message(CheckActions(Parse("0F0 0R0 0B0 0R0"), 0, 2)), HasSubstr("comes after"));
}

TEST(CheckScheduleTest, AcceptsWhatRuns) {
  EXPECT_TRUE(CheckSchedule(ParseAll({"0F0 0B0"}), 1, 1).ok());
  EXPECT_TRUE(CheckSchedule(ParseAll({"0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"}), 2, 1).ok());
  EXPECT_TRUE(CheckSchedule(ParseAll({"0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"}), 2, 1).ok());
}

// Stage 1 wants micro-batch 2 first, but stage 0 cannot send it before one of 0 and 1 is taken.
TEST(CheckScheduleTest, FindsADeadlockOfCreditsAndMarksTheCells) {
  const Schedule schedule = ParseAll({"0F0 0F1 0F2 0B0 0B1 0B2", "1F2 1F1 1F0 1B0 1B1 1B2"});
  const absl::Status status = CheckSchedule(schedule, 3, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(status),
            "deadlock with 2 credits an edge: stage 0 waits at 0F2 for a credit to send the "
            "activation of micro-batch 2 to stage 1; stage 1 waits at 1F2 for the activation of "
            "micro-batch 2 from stage 0\n"
            "stage 0 | 0F0  0F1 [0F2] 0B0  0B1  0B2\n"
            "stage 1 |[1F2] 1F1  1F0  1B0  1B1  1B2");
  EXPECT_TRUE(CheckSchedule(schedule, 3, 3).ok());
}

// Stage 0 wants its first gradient before it has sent all that stage 1 wants first: no number of
// credits helps.
TEST(CheckScheduleTest, FindsADeadlockOfOrder) {
  const absl::Status status =
      CheckSchedule(ParseAll({"0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"}), 2, 100);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status),
              HasSubstr("stage 0 waits at 0B0 for the gradient of micro-batch 0 from stage 1"));
  EXPECT_THAT(Message(status), HasSubstr("stage 0 | 0F0 [0B0] 0F1  0B1\n"));
}

TEST(CheckScheduleTest, KeepsTheErrorOfAHugeScheduleSmall) {
  constexpr int kStages = 50, kMicroBatches = 500;
  Schedule schedule(kStages);
  for (int k = 0; k < kStages; ++k) {
    for (int m = 0; m < kMicroBatches; ++m) {
      schedule[k].push_back({k, ActionKind::kForward, k == 20 ? kMicroBatches - 1 - m : m});
    }
    for (int m = 0; m < kMicroBatches; ++m) schedule[k].push_back({k, ActionKind::kBackward, m});
  }
  const absl::Status status = CheckSchedule(schedule, kMicroBatches, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_LT(status.message().size(), 4000u);
  EXPECT_THAT(Message(status), HasSubstr("stage 20 waits at 20F499 for the activation"));
  EXPECT_THAT(Message(status), HasSubstr("[20F499]"));
}

TEST(CheckScheduleTest, RefusesNoStagesAndNoCredits) {
  EXPECT_EQ(CheckSchedule({}, 1, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckSchedule(ParseAll({"0F0 0B0"}), 1, 0).code(), absl::StatusCode::kInvalidArgument);
}

TEST(DrawGridTest, DrawsOneRowAStage) {
  EXPECT_EQ(DrawGrid(ParseAll({"0F0 0F10 0B0", "1F0"})),
            "stage 0 | 0F0   0F10  0B0\n"
            "stage 1 | 1F0\n");
}

}  // namespace
}  // namespace headrace
