#include "coordinator/step_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "coordinator/step_ranges.h"

namespace headrace {
namespace {

v1::StepResult Done(int64_t step, double loss, const std::string& skipped = "") {
  v1::StepResult result;
  result.set_step(step);
  result.set_loss(loss);
  result.set_skipped(skipped);
  return result;
}

v1::StepRange Range(int64_t first, int64_t last) {
  v1::StepRange range;
  range.set_first(first);
  range.set_last(last);
  return range;
}

TEST(StepHistoryTest, TellsAReplayedStepThatDiffersByOneBit) {
  StepHistory history;
  history.Add(Done(1, 2.5));
  history.Add(Done(2, NAN, "the loss is NaN"));
  EXPECT_EQ(history.Differs(Done(1, 2.5)), std::nullopt);
  EXPECT_EQ(history.Differs(Done(2, NAN, "the loss is NaN")), std::nullopt);
  EXPECT_EQ(history.Differs(Done(3, 9)), std::nullopt) << "not known";
  EXPECT_EQ(history.Differs(Done(1, std::nextafter(2.5, 3))),
            "step 1 differs when replayed: its loss is 2.5000000000000004, it was 2.5");
  EXPECT_EQ(history.Differs(Done(2, NAN)),
            "step 2 differs when replayed: it is applied now, it was not before");
}

TEST(StepHistoryTest, GivesTheLastFiniteLossesOfAppliedSteps) {
  StepHistory history;
  for (int step = 1; step <= 30; ++step) history.Add(Done(step, step));
  history.Add(Done(31, NAN, "NaN"));
  history.Add(Done(32, 1e9, "a spike"));
  history.Add(Done(33, 33));
  EXPECT_EQ(history.RecentLosses(3), (std::vector<double>{1, 2, 3}));
  const std::vector<double> recent = history.RecentLosses(33);
  ASSERT_EQ(recent.size(), StepHistory::kRecent);
  EXPECT_EQ(recent.front(), 12);
  EXPECT_EQ(recent.back(), 33);
  history.LeaveOut(Range(13, 33));
  EXPECT_EQ(history.RecentLosses(33).back(), 12);
}

TEST(StepHistoryTest, ForgetsTheOldest) {
  StepHistory history;
  for (size_t step = 1; step <= StepHistory::kMaxSteps + 1; ++step) {
    history.Add(Done(static_cast<int64_t>(step), 1));
  }
  EXPECT_EQ(history.Differs(Done(1, 2)), std::nullopt);
  EXPECT_NE(history.Differs(Done(2, 2)), std::nullopt);
}

TEST(StepRangesTest, JoinWhatTouches) {
  StepRanges ranges;
  AddRange(11, 20, &ranges);
  AddRange(31, 40, &ranges);
  AddRange(5, 3, &ranges);  // none
  ASSERT_EQ(ranges.size(), 2);
  AddRange(21, 25, &ranges);
  ASSERT_EQ(ranges.size(), 2);
  EXPECT_EQ(ranges[0].last(), 25);
  AddRange(12, 35, &ranges);
  ASSERT_EQ(ranges.size(), 1);
  EXPECT_EQ(ranges[0].first(), 11);
  EXPECT_EQ(ranges[0].last(), 40);
  EXPECT_FALSE(Contains(ranges, 10));
  EXPECT_TRUE(Contains(ranges, 11));
  EXPECT_TRUE(Contains(ranges, 40));
  EXPECT_FALSE(Contains(ranges, 41));
}

TEST(StepRangesTest, TellWhatIsLeftToDo) {
  StepRanges ranges;
  EXPECT_EQ(LastToDo(ranges, 20), 20);
  EXPECT_EQ(NextToDo(ranges, 20), 21);
  AddRange(11, 20, &ranges);
  EXPECT_EQ(LastToDo(ranges, 20), 10);
  EXPECT_EQ(LastToDo(ranges, 21), 21);
  EXPECT_EQ(NextToDo(ranges, 10), 21);
  EXPECT_EQ(NextToDo(ranges, 9), 10);
  AddRange(1, 30, &ranges);
  EXPECT_EQ(LastToDo(ranges, 20), 0);
}

}  // namespace
}  // namespace headrace
