#include "common/steady_clock.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace headrace {
namespace {

TEST(SteadyClockTest, GoesForwardInNanoseconds) {
  const int64_t begin = SteadyNanos();
  while (SteadyNanos() == begin) continue;
  EXPECT_GT(SteadyNanos(), begin);
  // The two clocks are read apart, so only the order of magnitude can be held to.
  const absl::Time wall = absl::Now();
  const int64_t steady = SteadyNanos();
  while (absl::Now() - wall < absl::Milliseconds(5)) continue;
  EXPECT_GT(SteadyNanos() - steady, 1'000'000);
}

TEST(SteadyClockTest, HasOneNameInAProcess) {
  EXPECT_FALSE(SteadyClockName().empty());
  EXPECT_EQ(SteadyClockName(), SteadyClockName());
  EXPECT_EQ(SteadyClockName().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace headrace
