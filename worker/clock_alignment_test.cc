#include "worker/clock_alignment.h"

#include "gtest/gtest.h"

namespace headrace {
namespace {

constexpr int64_t kMs = 1'000'000, kSecond = 1000 * kMs;

v1::ClockReading Reading(int64_t now_ns, const std::string& clock = "theirs") {
  v1::ClockReading reading;
  reading.set_clock(clock);
  reading.set_now_ns(now_ns);
  return reading;
}

TEST(ClockAlignmentTest, KnowsNothingBeforeTheFirstAnswer) {
  ClockAlignment alignment("ours");
  EXPECT_FALSE(alignment.At(0).has_value());
  alignment.Add(v1::ClockReading(), 10, 20);  // a coordinator that does not say
  EXPECT_FALSE(alignment.At(30).has_value());
}

// The coordinator's clock is 5 s ahead; a call takes 1 ms there and 3 ms back.
TEST(ClockAlignmentTest, TheMiddleOfACallIsOffByAtMostHalfOfIt) {
  ClockAlignment alignment("ours");
  alignment.Add(Reading(5 * kSecond + 101 * kMs), 100 * kMs, 104 * kMs);
  const auto at = alignment.At(104 * kMs);
  ASSERT_TRUE(at.has_value());
  EXPECT_EQ(at->offset_ns, 5 * kSecond - kMs);
  EXPECT_EQ(at->error_ns, 2 * kMs);
}

TEST(ClockAlignmentTest, TheQuickestCallCountsUntilDriftHasEatenItsLead) {
  ClockAlignment alignment("ours");
  alignment.Add(Reading(kMs), 0, 2 * kMs);  // off by at most 1 ms
  alignment.Add(Reading(7 * kSecond + 10 * kMs), 7 * kSecond, 7 * kSecond + 4 * kMs);
  // After 7 s the first may be off by 1 ms + 0.35 ms, the second by 2 ms.
  EXPECT_EQ(alignment.At(7 * kSecond)->offset_ns, 0);
  EXPECT_NEAR(alignment.At(7 * kSecond + 2 * kMs)->error_ns, 1350e3, 1e3);
  alignment.Add(Reading(30 * kSecond + 10 * kMs), 30 * kSecond, 30 * kSecond + 4 * kMs);
  EXPECT_EQ(alignment.At(30 * kSecond)->offset_ns, 8 * kMs);
  EXPECT_EQ(alignment.At(30 * kSecond + 4 * kMs)->error_ns, 2 * kMs);
}

TEST(ClockAlignmentTest, OneClockNeedsNoEstimate) {
  ClockAlignment alignment("ours");
  alignment.Add(Reading(150, "ours"), 0, 1000);
  EXPECT_EQ(alignment.At(3600 * kSecond)->offset_ns, 0);
  EXPECT_EQ(alignment.At(3600 * kSecond)->error_ns, 0);
}

TEST(ClockAlignmentTest, ACoordinatorOnAnotherMachineStartsAgain) {
  ClockAlignment alignment("ours");
  alignment.Add(Reading(0, "ours"), 0, 2);
  alignment.Add(Reading(90 * kMs, "theirs"), 10 * kMs, 30 * kMs);
  EXPECT_EQ(alignment.At(30 * kMs)->offset_ns, 70 * kMs);
  EXPECT_EQ(alignment.At(30 * kMs)->error_ns, 10 * kMs);
}

}  // namespace
}  // namespace headrace
