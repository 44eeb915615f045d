#include "worker/sim/sim_wire.h"

#include <algorithm>

#include "plan/sim_device.h"

namespace headrace {

absl::Time SimWire::Deliver(int from_stage, int64_t bytes, absl::Time arrived) {
  const v1::SimDevice& sender = senders_[static_cast<size_t>(from_stage)];
  if (!sender.wire()) return arrived;
  absl::MutexLock lock(&mu_);
  absl::Time& free_at = free_at_.try_emplace(from_stage, absl::InfinitePast()).first->second;
  free_at = std::max(free_at, arrived) + absl::Seconds(SimLinkSeconds(sender, bytes));
  return free_at;
}

}  // namespace headrace
