#include "client/job_spans.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

bool Earlier(const Span& a, const Span& b) {
  return std::tie(a.begin_ns, a.end_ns) < std::tie(b.begin_ns, b.end_ns);
}

// Sender, receiver, step, micro-batch, message.
using TensorKey = std::tuple<int, int, int64_t, int, int>;

// When the first bytes of each tensor arrived.
using Arrivals = std::map<TensorKey, int64_t>;

Arrivals FindArrivals(const JobSpans& job) {
  Arrivals arrivals;
  for (size_t k = 0; k < job.stages.size(); ++k) {
    for (const Span& span : job.stages[k].spans) {
      if (span.kind != v1::SPAN_KIND_RECEIVE) continue;
      arrivals[{span.peer, static_cast<int>(k), span.step, span.micro_batch, span.message}] =
          span.begin_ns;
    }
  }
  return arrivals;
}

// What queues behind another tensor is not on the way before that one has left; and where an offset
// between clocks was measured anew, the next report may reach back into the last one. A tensor's
// memory may become free late, though: what has arrived was on the way.
void Disentangle(int stage, const Arrivals& arrivals, std::vector<Span>* spans) {
  std::sort(spans->begin(), spans->end(), Earlier);
  std::map<std::pair<Lane, int>, Span*> last;
  for (Span& span : *spans) {
    const Lane lane = LaneOf(span);
    const std::pair<Lane, int> thread = {lane, lane == Lane::kCompute ? -1 : span.peer};
    Span*& before = last[thread];
    if (before != nullptr && before->end_ns > span.begin_ns) {
      int64_t begin_ns = before->end_ns;
      const auto arrival =
          arrivals.find({stage, span.peer, span.step, span.micro_batch, span.message});
      if (lane == Lane::kSend && arrival != arrivals.end()) {
        begin_ns = std::min(begin_ns, std::max(span.begin_ns, arrival->second));
        begin_ns = std::max(begin_ns, before->begin_ns);
      }
      before->end_ns = begin_ns;
      span.begin_ns = begin_ns;
      span.end_ns = std::max(span.end_ns, begin_ns);
    }
    before = &span;
  }
  std::sort(spans->begin(), spans->end(), Earlier);
}

absl::Status AddChunk(const v1::StageTrace& chunk, JobSpans* job) {
  if (chunk.stage() < 0 || chunk.stage() >= static_cast<int64_t>(job->stages.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the coordinator sent a trace of stage ",
                                                   chunk.stage(), " of a job of ",
                                                   job->stages.size(), " stages"));
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<Span> spans, UnpackSpans(chunk));
  StageSpans& stage = job->stages[static_cast<size_t>(chunk.stage())];
  stage.clock_known &= chunk.has_clock_offset_ns();
  stage.clock_error_ns = std::max(stage.clock_error_ns, chunk.clock_error_ns());
  stage.dropped += chunk.dropped();
  for (Span span : spans) {
    if (span.step < job->first_step || span.step > job->last_step) continue;
    span.begin_ns += chunk.clock_offset_ns();
    span.end_ns += chunk.clock_offset_ns();
    stage.spans.push_back(span);
  }
  return absl::OkStatus();
}

}  // namespace

Lane LaneOf(const Span& span) {
  if (span.kind == v1::SPAN_KIND_RECEIVE) return Lane::kReceive;
  if (span.kind == v1::SPAN_KIND_SEND) return Lane::kSend;
  return Lane::kCompute;
}

absl::StatusOr<JobSpans> AssembleSpans(const std::vector<v1::StageTrace>& chunks,
                                       int64_t num_stages, int64_t first_step, int64_t last_step) {
  JobSpans job;
  job.first_step = first_step;
  job.last_step = last_step;
  job.stages.resize(static_cast<size_t>(num_stages));
  for (const v1::StageTrace& chunk : chunks) HEADRACE_RETURN_IF_ERROR(AddChunk(chunk, &job));
  const Arrivals arrivals = FindArrivals(job);
  bool any = false;
  for (size_t k = 0; k < job.stages.size(); ++k) {
    Disentangle(static_cast<int>(k), arrivals, &job.stages[k].spans);
    for (const Span& span : job.stages[k].spans) {
      job.begin_ns = any ? std::min(job.begin_ns, span.begin_ns) : span.begin_ns;
      job.end_ns = any ? std::max(job.end_ns, span.end_ns) : span.end_ns;
      any = true;
    }
  }
  if (any) return job;
  return absl::FailedPreconditionError(
      absl::StrCat("nothing is recorded of steps ", first_step, " to ", last_step));
}

absl::StatusOr<JobSpans> FetchSpans(Coordinator* coordinator, const v1::Job& job,
                                    int64_t first_step, int64_t last_step) {
  v1::ListJobTracesRequest request;
  request.set_job(job.id());
  request.set_first_step(first_step);
  request.set_last_step(last_step);
  std::vector<v1::StageTrace> chunks;
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(
        v1::ListJobTracesResponse page,
        coordinator->Call(&v1::CoordinatorService::Stub::ListJobTraces, request));
    // Where no range was given, the first answer says which it is; a running job goes on meanwhile.
    request.set_first_step(page.first_step());
    request.set_last_step(page.last_step());
    if (page.traces().empty()) break;
    for (v1::StageTrace& chunk : *page.mutable_traces()) {
      if (chunk.number() <= request.after()) {
        return absl::InternalError(absl::StrCat("the coordinator at ", coordinator->address(),
                                                " lists the trace of job ", job.id(),
                                                " out of order"));
      }
      request.set_after(chunk.number());
      chunks.push_back(std::move(chunk));
    }
  }
  return AssembleSpans(chunks, job.plan().stages(), request.first_step(), request.last_step());
}

}  // namespace headrace
