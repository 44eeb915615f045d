// Turns what the coordinator sent into a StageJob, or says what is wrong with it: a coordinator's
// mistake must not crash a worker, and nothing is allocated for a stage that will not fit.
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "headrace/v1/worker.pb.h"
#include "worker/pipeline/stage_job.h"

namespace headrace {

// What this worker has.
struct WorkerLimits {
  int64_t memory_bytes = 0;
  int threads = 1;
  bool bf16 = false;  // its device multiplies bf16
  bool simulated = false;
  DeviceKind device = DeviceKind::kCpu;
  // Of host memory that a stage may take beside a device's, for what travels.
  int64_t staging_bytes = 0;
};

//   FAILED_PRECONDITION  precision bf16 without emulation, on a processor that has not got it; bf16
//                       on a device, or heads of a size, that CUDA kernels are not for
//   INVALID_ARGUMENT    a field is missing, out of range or contradicts another; a bad action list
//   RESOURCE_EXHAUSTED  the stage needs more memory than the worker has, or more host memory beside
//                       its device's; names stage, kinds and bytes
absl::StatusOr<StageJob> CheckAssignment(const v1::StageAssignment& assignment,
                                         const WorkerLimits& limits);

}  // namespace headrace
