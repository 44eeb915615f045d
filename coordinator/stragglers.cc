#include "coordinator/stragglers.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace headrace {
namespace {

double PlannedSeconds(const v1::StagePlan& stage, int64_t micro_batches) {
  int64_t forwards = 0, recomputes = 0, backwards = 0;
  for (const char c : stage.actions()) {
    forwards += c == 'F' ? 1 : 0;
    recomputes += c == 'R' ? 1 : 0;
    backwards += c == 'B' ? 1 : 0;
  }
  if (forwards == 0) forwards = backwards = micro_batches;
  return static_cast<double>(forwards) * stage.forward_s() +
         static_cast<double>(recomputes) * stage.recompute_s() +
         static_cast<double>(backwards) * stage.backward_s();
}

}  // namespace

Stragglers::Stragglers(const v1::Plan& plan) : num_stages_(plan.stage_size()) {
  for (int k = 0; k < num_stages_; ++k) {
    const v1::StagePlan& stage = plan.stage(k);
    if (!stage.device().empty()) continue;
    stages_.push_back({k, stage.worker(), PlannedSeconds(stage, plan.micro_batches())});
  }
}

std::optional<std::string> Stragglers::Add(const v1::StepResult& step) {
  const size_t n = stages_.size();
  if (told_ || n < 2 || step.stage_seconds_size() != num_stages_) return std::nullopt;
  std::vector<double> ratios;
  for (size_t k = 0; k < n; ++k) {
    const v1::StageSeconds& took = step.stage_seconds(static_cast<int>(stages_[k].number));
    if (stages_[k].planned_s <= 0) return std::nullopt;
    ratios.push_back((took.compute() + took.recompute()) / stages_[k].planned_s);
  }
  std::vector<double> sorted = ratios;
  // Of two the lower one: somebody must be right.
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>((n - 1) / 2),
                   sorted.end());
  const double median = sorted[(n - 1) / 2];
  for (size_t k = 0; k < n; ++k) {
    Stage& stage = stages_[k];
    const double share_s = median * stage.planned_s;
    const double took_s = ratios[k] * stage.planned_s;
    const bool late = took_s > kFactor * share_s && took_s - share_s >= kLeast_s;
    stage.late = late ? stage.late + 1 : 0;
    if (stage.late < kSteps) continue;
    told_ = true;
    return absl::StrFormat(
        "worker %s (stage %d) lags: it computed %.3g s in step %d, %.2g times the %.3g s that its "
        "share of the plan takes at the others' speed, and so for %d steps in a row",
        stage.worker, stage.number, took_s, step.step(), took_s / share_s, share_s, kSteps);
  }
  return std::nullopt;
}

}  // namespace headrace
