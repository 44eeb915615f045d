#include "coordinator/step_history.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_format.h"

namespace headrace {

void StepHistory::Add(const v1::StepResult& step) {
  if (!entries_.empty() && step.step() <= entries_.back().step) return;
  entries_.push_back(Entry{step.step(), step.loss(), step.skipped().empty()});
  if (entries_.size() > kMaxSteps) entries_.pop_front();
}

std::optional<std::string> StepHistory::Differs(const v1::StepResult& replayed) const {
  const auto it =
      std::lower_bound(entries_.begin(), entries_.end(), replayed.step(),
                       [](const Entry& entry, int64_t step) { return entry.step < step; });
  if (it == entries_.end() || it->step != replayed.step()) return std::nullopt;
  const bool same_loss =
      std::bit_cast<uint64_t>(it->loss) == std::bit_cast<uint64_t>(replayed.loss()) ||
      (std::isnan(it->loss) && std::isnan(replayed.loss()));
  if (!same_loss) {
    return absl::StrFormat("step %d differs when replayed: its loss is %.17g, it was %.17g",
                           replayed.step(), replayed.loss(), it->loss);
  }
  if (it->applied == replayed.skipped().empty()) return std::nullopt;
  return absl::StrFormat("step %d differs when replayed: it %s applied now, it %s before",
                         replayed.step(), it->applied ? "is not" : "is",
                         it->applied ? "was" : "was not");
}

std::vector<double> StepHistory::RecentLosses(int64_t up_to_step) const {
  std::vector<double> losses;
  for (auto it = entries_.rbegin(); it != entries_.rend() && losses.size() < kRecent; ++it) {
    if (it->step <= up_to_step && it->applied && std::isfinite(it->loss)) {
      losses.push_back(it->loss);
    }
  }
  std::reverse(losses.begin(), losses.end());
  return losses;
}

void StepHistory::LeaveOut(const v1::StepRange& steps) {
  std::erase_if(entries_, [&](const Entry& entry) {
    return steps.first() <= entry.step && entry.step <= steps.last();
  });
}

}  // namespace headrace
