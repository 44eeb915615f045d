// What the stages of a job did in some of its steps, put together from their reports: all times on
// the coordinator's clock, each step's spans once, threads without overlaps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/coordinator.h"
#include "headrace/v1/cluster.pb.h"
#include "plan/span.h"

namespace headrace {

// A stage computes and waits on one thread; each tensor it receives or sends is on the way beside
// that, one at a time on each link.
enum class Lane { kCompute, kReceive, kSend };
Lane LaneOf(const Span& span);

struct StageSpans {
  std::vector<Span> spans;     // by their begin
  bool clock_known = true;     // false: its clock was never measured, times are as it told them
  int64_t clock_error_ns = 0;  // of its times, at most, in either direction
  int64_t dropped = 0;         // spans the worker had no room for
};

struct JobSpans {
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::vector<StageSpans> stages;
  int64_t begin_ns = 0;  // of the first span
  int64_t end_ns = 0;    // of the last one
};

// Of two spans of one thread the later begins when the earlier has ended.
//   INVALID_ARGUMENT     a chunk that is no chunk (UnpackSpans), or of a stage the job has not
//   FAILED_PRECONDITION  no span at all
absl::StatusOr<JobSpans> AssembleSpans(const std::vector<v1::StageTrace>& chunks,
                                       int64_t num_stages, int64_t first_step, int64_t last_step);

// Steps 0 to 0: the last one. Errors as AssembleSpans and ListJobTraces.
absl::StatusOr<JobSpans> FetchSpans(Coordinator* coordinator, const v1::Job& job,
                                    int64_t first_step, int64_t last_step);

}  // namespace headrace
