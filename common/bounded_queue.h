// A queue bounded in bytes (or in whatever the caller counts), closable, with deadlines. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace headrace {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(int64_t capacity) : capacity_(capacity) {}

  // Waits until `weight` fits beside what is queued (an item heavier than the whole queue fits when
  // the queue is empty).
  //   DEADLINE_EXCEEDED  still full    CANCELLED  closed
  absl::Status Push(T item, int64_t weight, absl::Time deadline) {
    absl::MutexLock lock(&mu_);
    const auto fits = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return closed_ || items_.empty() || used_ + weight <= capacity_;
    };
    if (!mu_.AwaitWithDeadline(absl::Condition(&fits), deadline)) {
      return absl::DeadlineExceededError("queue full");
    }
    if (closed_) return absl::CancelledError("queue closed");
    used_ += weight;
    items_.emplace_back(std::move(item), weight);
    return absl::OkStatus();
  }

  // Waits for an item. Closing drains: what was queued still comes out, then CANCELLED.
  absl::StatusOr<T> Pop(absl::Time deadline) {
    absl::MutexLock lock(&mu_);
    const auto ready = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closed_ || !items_.empty(); };
    if (!mu_.AwaitWithDeadline(absl::Condition(&ready), deadline)) {
      return absl::DeadlineExceededError("queue empty");
    }
    if (items_.empty()) return absl::CancelledError("queue closed");
    auto [item, weight] = std::move(items_.front());
    items_.pop_front();
    used_ -= weight;
    return std::move(item);
  }

  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }

  int64_t used() const {
    absl::MutexLock lock(&mu_);
    return used_;
  }

 private:
  const int64_t capacity_;
  mutable absl::Mutex mu_;
  std::deque<std::pair<T, int64_t>> items_ ABSL_GUARDED_BY(mu_);
  int64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace headrace
