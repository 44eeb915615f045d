// How far the coordinator's steady clock is ahead of this worker's, from calls both have seen:
//
//   worker       asked ────────┐                ┌──▶ heard
//   coordinator                └──▶ reads now ──┘
//
// `now` was read somewhere between `asked` and `heard`; the middle is wrong by at most half of the
// time between. Of all calls the one that is least wrong by now counts, for clocks drift apart too.
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "headrace/v1/worker.pb.h"

namespace headrace {

class ClockAlignment {
 public:
  // Two free-running clocks lose or gain no more on each other: 50 µs a second.
  static constexpr int64_t kDriftPpm = 50;

  struct Estimate {
    int64_t offset_ns = 0;  // added to a time here it is the coordinator's
    int64_t error_ns = 0;   // at most, in either direction
  };

  // `clock_name` is that of this worker's clock, SteadyClockName().
  explicit ClockAlignment(std::string clock_name) : clock_name_(std::move(clock_name)) {}

  // What a call that was made at `asked_ns` and answered at `heard_ns` said of the coordinator's
  // clock. The same clock as ours: no error at all. A reading of a new clock replaces the old
  // one's.
  void Add(const v1::ClockReading& reading, int64_t asked_ns, int64_t heard_ns);
  // As of `now_ns`; nothing before the first reading.
  std::optional<Estimate> At(int64_t now_ns) const;

 private:
  struct Sample {
    std::string clock;
    int64_t offset_ns = 0;
    int64_t error_ns = 0;  // when it was taken
    int64_t taken_ns = 0;
  };
  int64_t ErrorAt(const Sample& sample, int64_t now_ns) const;

  const std::string clock_name_;
  mutable absl::Mutex mu_;
  std::optional<Sample> best_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
