#include "worker/pipeline/span_recorder.h"

#include <algorithm>
#include <utility>

#include "common/steady_clock.h"

namespace headrace {

size_t SpanRecorder::CapacityFor(const StageJob& job) {
  // F, R, B; for each of two tensors in and two out at most a wait, a wait for memory and the way.
  constexpr int64_t kPerMicroBatch = 3 + 4 * 3;
  constexpr int64_t kPerEvaluation = 1 + 2 * 3;
  constexpr int64_t kPerStep = 32;  // optimizer, norm, tie and their messages
  const int64_t evaluations = job.validates ? job.training.eval_batches() : 0;
  const int64_t step =
      kPerStep + job.num_micro_batches() * (kPerMicroBatch + evaluations * kPerEvaluation);
  return std::min(kMaxCapacity, static_cast<size_t>(2 * step));
}

void SpanRecorder::Add(const Span& span) {
  absl::MutexLock lock(&mu_);
  ring_[static_cast<size_t>(added_++) % ring_.size()] = span;
}

v1::StageTrace SpanRecorder::Drain() {
  std::vector<Span> spans;
  v1::StageTrace trace;
  {
    absl::MutexLock lock(&mu_);
    const int64_t kept = std::max(drained_, added_ - static_cast<int64_t>(ring_.size()));
    trace.set_dropped(kept - drained_);
    spans.reserve(static_cast<size_t>(added_ - kept));
    for (int64_t i = kept; i < added_; ++i) {
      spans.push_back(ring_[static_cast<size_t>(i) % ring_.size()]);
    }
    drained_ = added_;
  }
  PackSpans(spans, &trace);
  return trace;
}

Departure::Departure(Departure&& other) noexcept
    : spans_(std::exchange(other.spans_, nullptr)), sent_(other.sent_) {}

Departure& Departure::operator=(Departure&& other) noexcept {
  if (this == &other) return *this;
  Record();
  spans_ = std::exchange(other.spans_, nullptr);
  sent_ = other.sent_;
  return *this;
}

void Departure::Start() { sent_.begin_ns = SteadyNanos(); }

void Departure::Record() {
  if (spans_ == nullptr) return;
  sent_.end_ns = SteadyNanos();
  std::exchange(spans_, nullptr)->Add(sent_);
}

}  // namespace headrace
