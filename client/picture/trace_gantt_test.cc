#include "client/picture/trace_gantt.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

constexpr int64_t kMs = 1'000'000;

Span Did(v1::SpanKind kind, int64_t step, int m, int64_t begin_ms, int64_t end_ms) {
  return {kind, step, m, v1::MESSAGE_KIND_UNSPECIFIED, -1, 0, begin_ms * kMs, end_ms * kMs};
}

JobSpans TwoStepsOfOneStage() {
  JobSpans spans;
  spans.first_step = 4;
  spans.last_step = 5;
  spans.stages.resize(1);
  spans.stages[0].spans = {
      Did(v1::SPAN_KIND_FORWARD, 4, 0, 100, 110),  Did(v1::SPAN_KIND_WAIT_RECEIVE, 4, 0, 110, 120),
      Did(v1::SPAN_KIND_BACKWARD, 4, 0, 120, 130), Did(v1::SPAN_KIND_OPTIMIZER, 4, -1, 130, 140),
      Did(v1::SPAN_KIND_SEND, 4, -1, 130, 190),    Did(v1::SPAN_KIND_FORWARD, 5, 0, 140, 150)};
  spans.begin_ns = 100 * kMs;
  spans.end_ns = 190 * kMs;
  return spans;
}

TEST(TraceGanttTest, DrawsWhatAStageComputesAndWaitsFor) {
  v1::Job job;
  job.set_id("j3");
  job.set_name("tiny");
  job.mutable_plan()->set_stages(1);
  job.mutable_plan()->set_micro_batches(1);
  const Gantt gantt = TraceGantt(job, TwoStepsOfOneStage());
  EXPECT_EQ(gantt.title, "tiny (j3), steps 4–5, measured");
  ASSERT_EQ(gantt.rows.size(), 1u);
  ASSERT_EQ(gantt.rows[0].bars.size(), 5u);  // without the send
  EXPECT_EQ(gantt.rows[0].bars[1].kind, BarKind::kWait);
  EXPECT_EQ(gantt.rows[0].bars[3].kind, BarKind::kUpdate);
  EXPECT_EQ(gantt.rows[0].bars[3].micro_batch, -1);
  EXPECT_NEAR(gantt.rows[0].bars[2].begin_s, 0.02, 1e-12);
  ASSERT_EQ(gantt.marks.size(), 1u);
  EXPECT_EQ(gantt.marks[0].text, "step 5");
  EXPECT_NEAR(gantt.marks[0].at_s, 0.04, 1e-12);
  EXPECT_NE(gantt.subtitle.find("50 ms, idle 20.0 %"), std::string::npos) << gantt.subtitle;
}

}  // namespace
}  // namespace headrace
