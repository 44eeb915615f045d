// What a stage asks of the device that it opens.
#pragma once

#include <cstdint>

#include "plan/stage_memory.h"
#include "worker/backend/compute_device.h"

namespace headrace {

// `arena_bytes` with what the ops take, `staging_bytes` for what travels.
DeviceNeeds NeedsOf(const StageShape& shape, int64_t arena_bytes, int64_t staging_bytes = 0);

}  // namespace headrace
