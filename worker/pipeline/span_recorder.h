// What one stage spends its time on, for `headrace trace`: always on, taken once before step 1, and
// emptied into a report after every step. A span costs a lock nobody contends for and a copy of 64
// bytes. Thread-safe: the compute thread adds most spans, a transport's thread those of tensors
// that have left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "plan/span.h"
#include "worker/pipeline/stage_job.h"

namespace headrace {

class SpanRecorder {
 public:
  // A report of so many spans stays well below what one message may hold.
  static constexpr size_t kMaxCapacity = 1 << 16;

  // Room for `capacity` spans between two reports; of more the latest are kept.
  explicit SpanRecorder(size_t capacity) : ring_(capacity) {}
  // For two steps of this job, so that what is late is not lost.
  explicit SpanRecorder(const StageJob& job) : SpanRecorder(CapacityFor(job)) {}

  void Add(const Span& span);
  // The spans since the last call in the order they ended, and how many were overwritten.
  v1::StageTrace Drain();

 private:
  static size_t CapacityFor(const StageJob& job);

  absl::Mutex mu_;
  std::vector<Span> ring_ ABSL_GUARDED_BY(mu_);
  int64_t added_ ABSL_GUARDED_BY(mu_) = 0;    // since the object was made
  int64_t drained_ ABSL_GUARDED_BY(mu_) = 0;  // of those, reported or overwritten
};

// Goes with a tensor on its way out and records, when it goes, that the tensor has left. Move-only;
// `spans` must outlive it.
class Departure {
 public:
  Departure() = default;
  // `sent` is complete but for its end.
  Departure(SpanRecorder* spans, const Span& sent) : spans_(spans), sent_(sent) {}
  Departure(Departure&& other) noexcept;
  Departure& operator=(Departure&& other) noexcept;
  ~Departure() { Record(); }

  // It has its credit: what went before was waiting.
  void Start();

 private:
  void Record();

  SpanRecorder* spans_ = nullptr;  // null: recorded, or nothing to record
  Span sent_;
};

}  // namespace headrace
