// The last things one stage did, each with its time: what a person reads after a hang or a loss.
// Thread-safe: the compute thread records, an RPC thread reads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace headrace {

class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 256;  // entries; older ones are overwritten

  // `clock` must outlive the recorder.
  explicit FlightRecorder(const Clock* clock = Clock::Real());

  // "step 12, micro-batch 3: waiting for the activation from stage 0 (worker w0)"
  void Record(std::string text);

  // Oldest first, "04:53:56.123456 step 12, …" (UTC).
  std::vector<std::string> Entries() const;

 private:
  struct Entry {
    absl::Time time;
    std::string text;
  };

  const Clock* const clock_;
  mutable absl::Mutex mu_;
  std::vector<Entry> ring_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;  // where the next entry goes once the ring is full
};

}  // namespace headrace
