// A simulated device's time. What the system wakes an action up late by is given back to the next
// one, so it does not add up: that one begins as much earlier, if it follows without a wait. A wait
// in between, for a tensor or for a lock, is no lateness of a timer, and nothing is given back.
// What the thread does between two actions counts as it does on a real device.
//
//   ├── action ───┤late│work├── action ───┤        as it happens
//   ├── action ───┤work├── action ───┤             as it counts
//
// Sleeping takes no CPU time. Used by one thread.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace headrace {

// Lets timers of this thread, and of threads it starts later, fire when they are due rather than up
// to 50 µs later. For a process that simulates.
void UseExactTimers();

class SimClock {
 public:
  // Returns once the device, which works on one thing at a time, has worked on this for `time`.
  void Work(absl::Duration time);

 private:
  int64_t late_ns_ = 0;  // of the last sleep, by which the next action may begin earlier
  int64_t waits_ = 0;    // of this thread, until that sleep ended
};

}  // namespace headrace
