#include "coordinator/trace_pages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/job_messages.h"
#include "coordinator/store/job_store.h"

namespace headrace {
namespace {

constexpr size_t kMaxPageBytes = 1 << 20;  // a client takes messages of 8 MiB

std::string Steps(int64_t first, int64_t last) {
  if (first == last) return absl::StrCat("step ", first);
  return absl::StrCat("steps ", first, " to ", last);
}

absl::Status NothingKept(const v1::Job& job) {
  if (job.step() == 0) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id(), " has done no step",
                                                      HasEnded(job.state()) ? "" : " yet",
                                                      ": it is ", ShortName(job.state())));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "no step of job ", job.id(), " is kept: traces are kept of running jobs and of the last ",
      JobStore::kKeptTraces, " that ended while their coordinator ran"));
}

}  // namespace

absl::StatusOr<v1::ListJobTracesResponse> PageOfTrace(const v1::Job& job, v1::JobTrace trace,
                                                      const v1::ListJobTracesRequest& request) {
  int64_t first = request.first_step(), last = request.last_step();
  const bool any = first == 0 && last == 0;
  if (!any && (first < 1 || last < first)) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps ", first, " to ", last, ": not a range; steps count from 1"));
  }
  int64_t last_kept = 0;
  for (const v1::StageTrace& chunk : trace.traces()) {
    last_kept = std::max(last_kept, chunk.last_step());
  }
  const int64_t first_kept = trace.dropped_step() + 1;
  if (last_kept < first_kept) return NothingKept(job);
  // The newest step may still be going on, or have ended in a fault.
  if (any) first = last = std::clamp(job.step(), first_kept, last_kept);
  if (first < first_kept || last > last_kept) {
    return absl::FailedPreconditionError(
        absl::StrCat(Steps(first, last), " of job ", job.id(),
                     first == last ? ": not kept; " : ": not all kept; ",
                     Steps(first_kept, last_kept), first_kept == last_kept ? " is" : " are"));
  }
  v1::ListJobTracesResponse response;
  response.set_first_step(first);
  response.set_last_step(last);
  size_t bytes = 0;
  for (v1::StageTrace& chunk : *trace.mutable_traces()) {
    if (chunk.number() <= request.after()) continue;
    if (chunk.last_step() < first || chunk.first_step() > last) continue;
    bytes += chunk.ByteSizeLong();
    if (response.traces_size() > 0 && bytes > kMaxPageBytes) break;
    *response.add_traces() = std::move(chunk);
  }
  return response;
}

}  // namespace headrace
