// How long one layer takes on this worker: runs it forward, again, and backward on numbers that
// mean nothing, in memory of its own that is gone afterwards.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "headrace/v1/worker.pb.h"
#include "plan/stage_memory.h"
#include "worker/backend/compute_device.h"

namespace headrace {

// Bytes TimeLayer carves.
int64_t TimedLayerBytes(const StageShape& layer);

// `layer` is a stage of one layer; its micro-batch is `layer.largest`. After a warm-up, the least
// seconds of each of the three over a few rounds (about 0.3 s of them, one at least), so that a
// busy moment does not count; where the warm-up took over 2 s, its own. To be called on the
// thread that computes: sets its OpenMP threads.
//   RESOURCE_EXHAUSTED  the system, or the device, refuses the memory
//   else                as DeviceOpener, and what the device says of what it was told
//   CANCELLED           `cancelled` became true; looked at between the three
absl::StatusOr<v1::LayerSeconds> TimeLayer(const StageShape& layer,
                                           const std::atomic<bool>& cancelled,
                                           const DeviceOpener& open = OpenCpu);

}  // namespace headrace
