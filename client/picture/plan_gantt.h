// A plan's schedule, as the simulator runs it, for DrawGantt.
#pragma once

#include "absl/status/statusor.h"
#include "client/picture/gantt.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// One mini-batch with each stage's predicted times; what is left is waiting. `credits` as in the
// job (0: the default).
//   INVALID_ARGUMENT, FAILED_PRECONDITION  the plan's schedule is broken or cannot run
absl::StatusOr<Gantt> PlanGantt(const v1::Plan& plan, const v1::PipelineSpec& pipeline,
                                const std::string& job);

// "K = 8 stages, M = 32 micro-batches, gpipe, recompute always": for a picture's subtitle.
std::string ScheduleWords(const v1::Plan& plan);

}  // namespace headrace
