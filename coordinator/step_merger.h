// Each stage reports its part of a step; this puts the parts together. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"
#include "headrace/v1/worker.pb.h"

namespace headrace {

class StepMerger {
 public:
  // Steps up to `after_step` are merged already.
  explicit StepMerger(int64_t num_stages, int64_t after_step = 0)
      : num_stages_(num_stages), merged_(after_step) {}

  // The last step that was merged.
  int64_t merged() const { return merged_; }

  // The whole step once the last part is in: loss, norm, rate and tokens from the last stage,
  // seconds from each, a reason for skipping it from any, bubble = mean over stages of (wall −
  // compute − recompute − optimizer) / wall. Parts of a step that is merged already are dropped
  // (nullopt).
  //   INVALID_ARGUMENT   a stage that the job has not, a part that came twice, a step below 1, or
  //                      the last stage's part without a loss
  //   RESOURCE_EXHAUSTED a stage is more than kMaxOpenSteps ahead of another
  absl::StatusOr<std::optional<v1::StepResult>> Add(int64_t stage, const v1::StageStep& part);

  // Stages of a pipeline differ by a step or two, but a worker's reports may be late by a lease,
  // which is thousands of the shortest steps.
  static constexpr int64_t kMaxOpenSteps = 16384;

 private:
  v1::StepResult Merge(const std::map<int64_t, v1::StageStep>& parts) const;

  const int64_t num_stages_;
  int64_t merged_;
  std::map<int64_t, std::map<int64_t, v1::StageStep>> open_;  // step → stage → part
};

}  // namespace headrace
