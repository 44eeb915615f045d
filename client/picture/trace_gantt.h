// What the stages of a job did, as it was measured, for DrawGantt.
#pragma once

#include "client/job_spans.h"
#include "client/picture/gantt.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// One row a stage: its actions, updates, evaluations and waits, from the first span's begin.
// Several steps are set apart where stage 0 begins one. The idle share in the subtitle is what is
// not work in all stages' time from the first to the last thing drawn.
Gantt TraceGantt(const v1::Job& job, const JobSpans& spans);

}  // namespace headrace
