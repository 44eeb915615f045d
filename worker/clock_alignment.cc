#include "worker/clock_alignment.h"

#include <utility>

namespace headrace {

void ClockAlignment::Add(const v1::ClockReading& reading, int64_t asked_ns, int64_t heard_ns) {
  if (reading.clock().empty() || heard_ns < asked_ns) return;
  Sample sample;
  sample.clock = reading.clock();
  sample.taken_ns = heard_ns;
  if (reading.clock() != clock_name_) {
    sample.error_ns = (heard_ns - asked_ns + 1) / 2;
    sample.offset_ns = reading.now_ns() - (asked_ns + sample.error_ns);
  }
  absl::MutexLock lock(&mu_);
  if (best_ && best_->clock == sample.clock && ErrorAt(*best_, heard_ns) < sample.error_ns) return;
  best_ = std::move(sample);
}

std::optional<ClockAlignment::Estimate> ClockAlignment::At(int64_t now_ns) const {
  absl::MutexLock lock(&mu_);
  if (!best_) return std::nullopt;
  return Estimate{best_->offset_ns, ErrorAt(*best_, now_ns)};
}

int64_t ClockAlignment::ErrorAt(const Sample& sample, int64_t now_ns) const {
  if (sample.clock == clock_name_) return 0;
  return sample.error_ns + (now_ns - sample.taken_ns) / 1'000'000 * kDriftPpm;
}

}  // namespace headrace
