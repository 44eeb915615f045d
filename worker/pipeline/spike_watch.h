// Whether a loss is so far above those before it that its step is better not applied
// (recovery.spike_factor). A function of the losses alone: all stages see them, and a job that goes
// on from a state is told the last ones, so the answer is the same everywhere and each time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace headrace {

// Owned by the compute thread.
class SpikeWatch {
 public:
  static constexpr size_t kWindow = 20;  // of so many steps the mean counts
  static constexpr size_t kLeast = 5;    // with fewer there is no telling

  // `factor` 0: nothing is a spike. `losses`: of the last steps applied, the latest last.
  SpikeWatch(double factor, const std::vector<double>& losses);

  bool IsSpike(double loss) const;
  // "the loss of step 12 is 9.1, 3.2 times the mean of the 20 steps before"
  std::string Describe(int64_t step, double loss) const;
  // The loss of a step that was applied.
  void Add(double loss);

 private:
  double Mean() const;  // summed from the earliest on

  const double factor_;
  std::deque<double> losses_;
};

}  // namespace headrace
