// Spans of a job in the Trace Event Format, which chrome://tracing and ui.perfetto.dev read. A
// stage is a process; its threads are `compute` (actions and waits) and one for each link it
// receives or sends by. An arrow leads from each tensor's sending to its receiving.
#pragma once

#include <string>

#include "client/job_spans.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// Times in µs since the first span. `otherData` says what is shown, how far each stage's clock may
// be off, and how many spans were lost.
std::string ChromeTrace(const v1::Job& job, const JobSpans& spans);

// "F3", "wait for activation 3 from stage 0", "norm": what a span is called.
std::string NameOf(const Span& span);

}  // namespace headrace
