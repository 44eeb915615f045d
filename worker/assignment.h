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
  bool bf16 = false;  // its processor multiplies bf16
  bool simulated = false;
};

//   FAILED_PRECONDITION  precision bf16 without emulation, on a processor that has not got it
//   INVALID_ARGUMENT    a field is missing, out of range or contradicts another; a bad action list
//   RESOURCE_EXHAUSTED  the stage needs more memory than the worker has; names stage, kinds and
//   bytes
absl::StatusOr<StageJob> CheckAssignment(const v1::StageAssignment& assignment,
                                         const WorkerLimits& limits);

}  // namespace headrace
