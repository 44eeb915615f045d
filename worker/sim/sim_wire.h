// The wires into one stage whose senders declare a link: tensors that travelled without their
// payload become available when a wire of that kind would have brought them. An edge carries one
// tensor at a time in each direction, as plan/replay.h has it. Thread-safe.
//
//   arrives ─▶ waits for the edge ─▶ bytes / rate + latency ─▶ available
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

class SimWire {
 public:
  // senders[k]: what stage k's worker declares.
  explicit SimWire(std::vector<v1::SimDevice> senders) : senders_(std::move(senders)) {}

  // When a tensor of `bytes` that came from `from_stage` at `arrived` is available; `arrived` where
  // the sender has no wire.
  absl::Time Deliver(int from_stage, int64_t bytes, absl::Time arrived);

 private:
  const std::vector<v1::SimDevice> senders_;
  absl::Mutex mu_;
  std::map<int, absl::Time> free_at_ ABSL_GUARDED_BY(mu_);  // by sender
};

}  // namespace headrace
