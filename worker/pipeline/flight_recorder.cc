#include "worker/pipeline/flight_recorder.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace headrace {

FlightRecorder::FlightRecorder(const Clock* clock) : clock_(clock) {}

void FlightRecorder::Record(std::string text) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mu_);
  if (ring_.size() < kCapacity) {
    ring_.push_back({now, std::move(text)});
    return;
  }
  ring_[next_] = {now, std::move(text)};
  next_ = (next_ + 1) % kCapacity;
}

std::vector<std::string> FlightRecorder::Entries() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::string> entries;
  entries.reserve(ring_.size());
  for (size_t i = 0; i < ring_.size(); ++i) {
    const Entry& entry = ring_[(next_ + i) % ring_.size()];
    entries.push_back(absl::StrCat(absl::FormatTime("%H:%M:%E6S", entry.time, absl::UTCTimeZone()),
                                   " ", entry.text));
  }
  return entries;
}

}  // namespace headrace
