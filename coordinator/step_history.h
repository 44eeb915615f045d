// The losses of a job's steps as they were merged first. A job that goes on from an earlier step
// does some steps again: they must give the same, and are neither saved nor published twice. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "headrace/v1/job.pb.h"

namespace headrace {

class StepHistory {
 public:
  static constexpr size_t kMaxSteps = size_t{1} << 17;  // older ones are forgotten
  static constexpr size_t kRecent = 20;                 // what spike_factor goes by

  // A step later than all that are known; others are ignored.
  void Add(const v1::StepResult& step);
  // "step 7 differs when replayed: its loss is 2.25, it was 2.5"; nothing where it is the same to
  // the bit, or the step is not known.
  std::optional<std::string> Differs(const v1::StepResult& replayed) const;
  // Finite losses of the applied steps up to this one, the last kRecent at most, in order of steps.
  std::vector<double> RecentLosses(int64_t up_to_step) const;
  // These steps are undone.
  void LeaveOut(const v1::StepRange& steps);

 private:
  struct Entry {
    int64_t step = 0;
    double loss = 0;
    bool applied = true;
  };
  std::deque<Entry> entries_;  // ascending
};

}  // namespace headrace
