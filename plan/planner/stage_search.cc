#include "plan/planner/stage_search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "common/status.h"

namespace headrace {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kGrowth = 5;  // one part in so many more
constexpr int kNearness = 50;
constexpr size_t kTried = 2;

// Of equally fast ones that with fewer: `stages` ascend.
absl::StatusOr<std::optional<Trial>> FastestOf(Trials* trials, const std::vector<int>& stages) {
  std::optional<Trial> best;
  for (const int k : stages) {
    HEADRACE_ASSIGN_OR_RETURN(std::optional<Trial> trial, trials->Fastest(k));
    if (!trial) continue;
    if (!best || trial->simulation.step_s < best->simulation.step_s) best = std::move(trial);
  }
  return best;
}

// Estimates of some numbers of stages.
class Estimates {
 public:
  Estimates(Trials* trials, int first, int last) : trials_(trials) {
    for (int k = first; k < last; k += std::max(1, k / kGrowth)) Look(k);
    Look(last);
    while (LookAroundBest()) continue;
  }

  // The best ones, ascending; those that do not fit are left out.
  std::vector<int> Best(size_t count) const {
    std::vector<std::pair<double, int>> by_seconds;
    for (const auto& [k, seconds] : seconds_) {
      if (seconds < kNever) by_seconds.emplace_back(seconds, k);
    }
    std::sort(by_seconds.begin(), by_seconds.end());
    by_seconds.resize(std::min(by_seconds.size(), count));
    std::vector<int> best;
    for (const auto& [seconds, k] : by_seconds) best.push_back(k);
    std::sort(best.begin(), best.end());
    return best;
  }

 private:
  void Look(int k) { seconds_[k] = trials_->Estimate(k).value_or(kNever); }

  // Halves the distance of the best one to its neighbours; false: they are near.
  bool LookAroundBest() {
    const auto best =
        std::min_element(seconds_.begin(), seconds_.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const int k = best->first, near = std::max(1, k / kNearness);
    std::vector<int> looks;
    if (best != seconds_.begin() && k - std::prev(best)->first > near) {
      looks.push_back((k + std::prev(best)->first) / 2);
    }
    if (std::next(best) != seconds_.end() && std::next(best)->first - k > near) {
      looks.push_back((k + std::next(best)->first) / 2);
    }
    for (const int look : looks) Look(look);
    return !looks.empty();
  }

  Trials* const trials_;
  std::map<int, double> seconds_;  // by stages
};

// If more stages than fit do too: the fewest.
int FewestThatFit(Trials* trials, int first, int last) {
  int no = first - 1, yes = first;
  for (int step = 1; yes < last && !trials->Fits(yes); step *= 2) {
    no = yes;
    yes = std::min(last, yes + step);
  }
  while (yes - no > 1) {
    const int middle = no + (yes - no) / 2;
    (trials->Fits(middle) ? yes : no) = middle;
  }
  return yes;
}

}  // namespace

absl::StatusOr<std::optional<Trial>> FindFastest(const JobShape& job,
                                                 const std::vector<PlanWorker>& workers, int first,
                                                 int last) {
  Trials trials(&job, workers);
  if (!job.training) {
    if (last - first >= kMaxStagesTried) return trials.Fastest(FewestThatFit(&trials, first, last));
    for (int k = first; k <= last; ++k) {
      HEADRACE_ASSIGN_OR_RETURN(std::optional<Trial> trial, trials.Fastest(k));
      if (trial) return trial;
    }
    return std::optional<Trial>();
  }
  std::vector<int> stages;
  if (last - first >= kMaxStagesTried) {
    stages = Estimates(&trials, first, last).Best(kTried);
  } else {
    for (int k = first; k <= last; ++k) stages.push_back(k);
  }
  return FastestOf(&trials, stages);
}

}  // namespace headrace
