#include "worker/pipeline/device_needs.h"

#include "plan/cuda_memory.h"

namespace headrace {

DeviceNeeds NeedsOf(const StageShape& shape, int64_t arena_bytes, int64_t staging_bytes) {
  DeviceNeeds needs;
  needs.arena_bytes = arena_bytes;
  needs.precision = shape.precision;
  needs.tf32 = shape.tf32;
  needs.threads = shape.threads;
  if (shape.device == DeviceKind::kCpu) return needs;
  needs.staging_bytes = staging_bytes;
  needs.product_bytes = kCudaProductBytes;
  needs.scratch_bytes = CudaScratchBytes(shape);
  return needs;
}

}  // namespace headrace
