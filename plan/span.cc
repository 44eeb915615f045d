#include "plan/span.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace headrace {

void PackSpans(const std::vector<Span>& spans, v1::StageTrace* trace) {
  const int size = static_cast<int>(spans.size());
  trace->mutable_begin_ns()->Reserve(size);
  trace->mutable_duration_ns()->Reserve(size);
  trace->mutable_kind()->Reserve(size);
  trace->mutable_step()->Reserve(size);
  trace->mutable_micro_batch()->Reserve(size);
  trace->mutable_message()->Reserve(size);
  trace->mutable_peer()->Reserve(size);
  trace->mutable_bytes()->Reserve(size);
  int64_t begin_ns = 0, step = 0;
  for (const Span& span : spans) {
    trace->add_begin_ns(span.begin_ns - begin_ns);
    trace->add_duration_ns(span.end_ns - span.begin_ns);
    trace->add_kind(span.kind);
    trace->add_step(span.step - step);
    trace->add_micro_batch(span.micro_batch);
    trace->add_message(span.message);
    trace->add_peer(span.peer);
    trace->add_bytes(span.bytes);
    begin_ns = span.begin_ns;
    step = span.step;
  }
  if (spans.empty()) return;
  const auto [first, last] = std::minmax_element(
      spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.step < b.step; });
  trace->set_first_step(first->step);
  trace->set_last_step(last->step);
}

absl::StatusOr<std::vector<Span>> UnpackSpans(const v1::StageTrace& trace) {
  const int size = trace.begin_ns_size();
  if (trace.duration_ns_size() != size || trace.kind_size() != size || trace.step_size() != size ||
      trace.micro_batch_size() != size || trace.message_size() != size ||
      trace.peer_size() != size || trace.bytes_size() != size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the trace of stage ", trace.stage(), " has columns of different lengths"));
  }
  std::vector<Span> spans(size);
  int64_t begin_ns = 0, step = 0;
  for (int i = 0; i < size; ++i) {
    if (trace.duration_ns(i) < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("span ", i, " of stage ", trace.stage(), " ends before it begins"));
    }
    begin_ns += trace.begin_ns(i);
    step += trace.step(i);
    Span& span = spans[i];
    span.kind = trace.kind(i);
    span.step = step;
    span.micro_batch = trace.micro_batch(i);
    span.message = trace.message(i);
    span.peer = trace.peer(i);
    span.bytes = trace.bytes(i);
    span.begin_ns = begin_ns;
    span.end_ns = begin_ns + trace.duration_ns(i);
  }
  return spans;
}

}  // namespace headrace
