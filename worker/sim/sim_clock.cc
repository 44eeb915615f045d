#include "worker/sim/sim_clock.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>

namespace headrace {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

int64_t Now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

void SleepUntil(int64_t deadline_ns) {
  const timespec deadline = {deadline_ns / kSecond, deadline_ns % kSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
  }
}

// How often this thread has given up its processor to wait for something.
int64_t Waits() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

}  // namespace

void UseExactTimers() { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

void SimClock::Work(absl::Duration time) {
  const int64_t now = Now();
  const bool waited = Waits() != waits_;
  const int64_t begin = waited ? now : now - late_ns_;
  const int64_t deadline = begin + absl::ToInt64Nanoseconds(time);
  if (deadline > now) SleepUntil(deadline);
  late_ns_ = std::max<int64_t>(0, Now() - deadline);
  waits_ = Waits();
}

}  // namespace headrace
