#include "client/picture/trace_gantt.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/picture/plan_gantt.h"
#include "client/render/human.h"

namespace headrace {
namespace {

// Nothing: the span is beside what the stage computes.
std::optional<BarKind> KindOf(v1::SpanKind kind) {
  switch (kind) {
    case v1::SPAN_KIND_FORWARD:
      return BarKind::kForward;
    case v1::SPAN_KIND_RECOMPUTE:
      return BarKind::kRecompute;
    case v1::SPAN_KIND_BACKWARD:
      return BarKind::kBackward;
    case v1::SPAN_KIND_ZERO_GRADIENTS:
    case v1::SPAN_KIND_TIE:
    case v1::SPAN_KIND_NORM:
    case v1::SPAN_KIND_OPTIMIZER:
      return BarKind::kUpdate;
    case v1::SPAN_KIND_EVALUATE:
      return BarKind::kEvaluate;
    case v1::SPAN_KIND_WAIT_RECEIVE:
    case v1::SPAN_KIND_WAIT_SEND:
      return BarKind::kWait;
    default:
      return std::nullopt;
  }
}

bool HasNumber(BarKind kind) { return kind != BarKind::kUpdate && kind != BarKind::kWait; }

}  // namespace

Gantt TraceGantt(const v1::Job& job, const JobSpans& spans) {
  Gantt gantt;
  int64_t begin_ns = spans.end_ns, end_ns = spans.begin_ns;
  for (const StageSpans& stage : spans.stages) {
    for (const Span& span : stage.spans) {
      if (LaneOf(span) != Lane::kCompute) continue;
      begin_ns = std::min(begin_ns, span.begin_ns);
      end_ns = std::max(end_ns, span.end_ns);
    }
  }
  const auto seconds = [begin_ns](int64_t ns) { return static_cast<double>(ns - begin_ns) * 1e-9; };
  double busy_s = 0;
  int64_t marked_step = spans.first_step;
  for (size_t k = 0; k < spans.stages.size(); ++k) {
    GanttRow row;
    row.label = absl::StrCat("stage ", k);
    for (const Span& span : spans.stages[k].spans) {
      const std::optional<BarKind> kind = KindOf(span.kind);
      if (!kind) continue;
      const double from_s = seconds(span.begin_ns), to_s = seconds(span.end_ns);
      row.bars.push_back({*kind, HasNumber(*kind) ? span.micro_batch : -1, from_s, to_s});
      if (*kind != BarKind::kWait) busy_s += to_s - from_s;
      if (k == 0 && span.step > marked_step) {
        gantt.marks.push_back({from_s, absl::StrCat("step ", span.step)});
        marked_step = span.step;
      }
    }
    gantt.rows.push_back(std::move(row));
  }
  const bool one = spans.first_step == spans.last_step;
  const double wall_s = seconds(end_ns);
  const double available_s = wall_s * static_cast<double>(spans.stages.size());
  gantt.title =
      absl::StrCat(job.name(), " (", job.id(), "), ", one ? "step " : "steps ", spans.first_step,
                   one ? "" : absl::StrCat("–", spans.last_step), ", measured");
  gantt.subtitle =
      absl::StrCat(ScheduleWords(job.plan()), ". ", FormatSeconds(wall_s), ", idle ",
                   FormatShare(available_s > 0 ? std::max(0.0, 1 - busy_s / available_s) : 0),
                   "; (K−1)/(M+K−1) = ", FormatShare(job.plan().ideal_bubble()));
  return gantt;
}

}  // namespace headrace
