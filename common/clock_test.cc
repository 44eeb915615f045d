#include "common/clock.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace headrace {
namespace {

TEST(ClockTest, TheRealOneIsNow) {
  const absl::Time before = absl::Now();
  const absl::Time now = Clock::Real()->Now();
  EXPECT_GE(now, before);
  EXPECT_LE(now, absl::Now());
}

TEST(ClockTest, TheFakeOneMovesOnlyWhenTold) {
  FakeClock clock(absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(100));
  clock.Advance(absl::Seconds(5));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(105));
}

}  // namespace
}  // namespace headrace
