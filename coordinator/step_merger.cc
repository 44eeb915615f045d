#include "coordinator/step_merger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace headrace {

absl::StatusOr<std::optional<v1::StepResult>> StepMerger::Add(int64_t stage,
                                                              const v1::StageStep& part) {
  const int64_t step = part.step();
  if (stage < 0 || stage >= num_stages_ || step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a report of step ", step, " from stage ", stage, " of ", num_stages_));
  }
  if (step <= merged_) return std::nullopt;
  if (stage == num_stages_ - 1 && !part.has_loss()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last stage's report of step ", step, " has no loss"));
  }
  if (step > merged_ + kMaxOpenSteps) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "stage ", stage, " reports step ", step, " while step ", merged_ + 1, " is not finished"));
  }
  auto& parts = open_[step];
  v1::StageStep& kept = parts[stage];
  if (kept.step() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", stage, " reports step ", step, " twice"));
  }
  kept = part;
  kept.clear_tensor_hashes();
  if (static_cast<int64_t>(parts.size()) < num_stages_) return std::nullopt;
  v1::StepResult result = Merge(parts);
  open_.erase(open_.begin(), open_.upper_bound(step));
  merged_ = step;
  return result;
}

v1::StepResult StepMerger::Merge(const std::map<int64_t, v1::StageStep>& parts) const {
  const v1::StageStep& last = parts.rbegin()->second;
  v1::StepResult result;
  result.set_step(last.step());
  result.set_loss(last.loss());
  result.set_gradient_norm(last.gradient_norm());
  result.set_learning_rate(last.learning_rate());
  result.set_tokens(last.tokens());
  if (last.has_validation_loss()) result.set_validation_loss(last.validation_loss());
  double idle = 0;
  for (const auto& [stage, part] : parts) {
    v1::StageSeconds* seconds = result.add_stage_seconds();
    *seconds = part.seconds();
    if (result.skipped().empty()) result.set_skipped(part.skipped());
    seconds->set_stage(stage);
    result.set_seconds(std::max(result.seconds(), seconds->wall()));
    if (seconds->wall() > 0) {
      const double busy = seconds->compute() + seconds->recompute() + seconds->optimizer();
      idle += std::max(0.0, (seconds->wall() - busy) / seconds->wall());
    }
  }
  result.set_bubble(idle / static_cast<double>(num_stages_));
  return result;
}

}  // namespace headrace
