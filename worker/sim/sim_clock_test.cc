#include "worker/sim/sim_clock.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "absl/time/clock.h"

namespace headrace {
namespace {

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(SimClockTest, ActionsTakeAtLeastTheirTimeAndLittleOfTheProcessors) {
  UseExactTimers();
  SimClock clock;
  const absl::Time start = absl::Now();
  const double cpu = CpuSeconds();
  for (int i = 0; i < 100; ++i) clock.Work(absl::Milliseconds(2));
  const absl::Duration took = absl::Now() - start;
  EXPECT_GE(took, absl::Milliseconds(200));
  EXPECT_LT(CpuSeconds() - cpu, 0.05);
}

TEST(SimClockTest, WorkOfNoTimeDoesNotWait) {
  SimClock clock;
  const absl::Time start = absl::Now();
  clock.Work(absl::ZeroDuration());
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
}

// After a wait nothing is given back: an action begins when the thread goes on.
TEST(SimClockTest, AnActionAfterAWaitTakesItsWholeTime) {
  SimClock clock;
  for (int i = 0; i < 20; ++i) {
    clock.Work(absl::Milliseconds(1));
    absl::SleepFor(absl::Milliseconds(1));
    const absl::Time start = absl::Now();
    clock.Work(absl::Milliseconds(1));
    EXPECT_GE(absl::Now() - start, absl::Microseconds(999));
  }
}

}  // namespace
}  // namespace headrace
