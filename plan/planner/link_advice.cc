#include "plan/planner/link_advice.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "common/status.h"

namespace headrace {
namespace {

constexpr size_t kMaxActions = 200'000;
constexpr int kMostTimes = 16;

size_t NumActions(const Schedule& schedule) {
  size_t actions = 0;
  for (const auto& list : schedule) actions += list.size();
  return actions;
}

// The same job with `times` as many micro-batches, and a mini-batch as much larger.
JobShape WithMore(JobShape job, int times) {
  const std::vector<int64_t> once = job.micro_batch_sequences;
  for (int i = 1; i < times; ++i) {
    job.micro_batch_sequences.insert(job.micro_batch_sequences.end(), once.begin(), once.end());
  }
  // As SplitBatch gives them: the larger ones first.
  std::sort(job.micro_batch_sequences.rbegin(), job.micro_batch_sequences.rend());
  return job;
}

}  // namespace

absl::Status AdviseOnLinks(const JobShape& job, const std::vector<PlanWorker>& workers,
                           const Trial& trial, Advice advice, v1::Plan* plan) {
  const size_t actions = NumActions(trial.schedule);
  const int stages = static_cast<int>(trial.partition.cells.size());
  if (stages < 2 || actions == 0 || actions > kMaxActions) return absl::OkStatus();
  const double step_s = trial.simulation.step_s;
  HEADRACE_ASSIGN_OR_RETURN(const double free_s, SecondsWithoutLinks(job, trial));
  plan->set_exposed_s(std::max(0.0, step_s - free_s));
  if (advice == Advice::kNone || plan->exposed_s() <= kExposedShare * step_s) {
    return absl::OkStatus();
  }
  for (int times = 2; times <= kMostTimes && times * actions <= kMaxActions; times *= 2) {
    const JobShape more = WithMore(job, times);
    Trials trials(&more, workers);
    HEADRACE_ASSIGN_OR_RETURN(const std::optional<Trial> other, trials.Fastest(stages));
    if (!other) return absl::OkStatus();
    HEADRACE_ASSIGN_OR_RETURN(const double other_free_s, SecondsWithoutLinks(more, *other));
    const double share = other_free_s / other->simulation.step_s;
    if (1 - share > (1 - free_s / step_s) / 2 && 1 - share > kExposedShare) continue;
    v1::LinkAdvice* const advised = plan->mutable_link_advice();
    advised->set_micro_batches(more.micro_batches());
    advised->set_batch_size(0);
    for (const int64_t sequences : more.micro_batch_sequences) {
      advised->set_batch_size(advised->batch_size() + sequences);
    }
    advised->set_compute_share(share);
    if (1 - share <= kExposedShare) return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace headrace
