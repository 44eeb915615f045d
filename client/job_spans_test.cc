#include "client/job_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headrace {
namespace {

Span Compute(v1::SpanKind kind, int64_t step, int m, int64_t begin_ns, int64_t end_ns) {
  return {kind, step, m, v1::MESSAGE_KIND_UNSPECIFIED, -1, 0, begin_ns, end_ns};
}
Span Tensor(v1::SpanKind kind, int64_t step, int m, int peer, int64_t begin_ns, int64_t end_ns) {
  return {kind, step, m, v1::MESSAGE_KIND_ACTIVATION, peer, 64, begin_ns, end_ns};
}

v1::StageTrace Chunk(int64_t stage, int64_t offset_ns, const std::vector<Span>& spans) {
  v1::StageTrace chunk;
  PackSpans(spans, &chunk);
  chunk.set_stage(stage);
  chunk.set_clock_offset_ns(offset_ns);
  chunk.set_clock_error_ns(offset_ns / 10);
  return chunk;
}

// Stage 1's clock is 1,000,000 ahead of the coordinator's, stage 0's is the coordinator's.
TEST(JobSpansTest, PutsAllStagesOnOneClock) {
  const auto job =
      AssembleSpans({Chunk(0, 0,
                           {Compute(v1::SPAN_KIND_FORWARD, 1, 0, 100, 200),
                            Tensor(v1::SPAN_KIND_SEND, 1, 0, 1, 200, 260)}),
                     Chunk(1, -1'000'000,
                           {Tensor(v1::SPAN_KIND_RECEIVE, 1, 0, 0, 1'000'210, 1'000'250),
                            Compute(v1::SPAN_KIND_FORWARD, 1, 0, 1'000'250, 1'000'400)})},
                    2, 1, 1);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->begin_ns, 100);
  EXPECT_EQ(job->end_ns, 400);
  EXPECT_EQ(job->stages[1].spans[0].begin_ns, 210);
  EXPECT_EQ(job->stages[1].spans[1].end_ns, 400);
  EXPECT_TRUE(job->stages[1].clock_known);
}

TEST(JobSpansTest, TakesTheStepsAskedForOutOfEveryChunkAndSumsUpWhatIsUncertain) {
  v1::StageTrace second = Chunk(0, 200,
                                {Tensor(v1::SPAN_KIND_SEND, 4, 1, 1, 900, 950),
                                 Compute(v1::SPAN_KIND_FORWARD, 5, 0, 960, 990),
                                 Compute(v1::SPAN_KIND_FORWARD, 6, 0, 1000, 1100)});
  second.set_dropped(3);
  v1::StageTrace first = Chunk(0, 100, {Compute(v1::SPAN_KIND_BACKWARD, 4, 1, 800, 890)});
  const auto job = AssembleSpans({first, second}, 1, 4, 5);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->stages[0].spans.size(), 3u);
  EXPECT_EQ(job->stages[0].clock_error_ns, 20);
  EXPECT_EQ(job->stages[0].dropped, 3);
  first.clear_clock_offset_ns();
  EXPECT_FALSE(AssembleSpans({first, second}, 1, 4, 5)->stages[0].clock_known);
}

// Two tensors have their credits at once: the link takes one at a time. But the memory of the first
// became free late, for the second has begun to arrive.
TEST(JobSpansTest, ATensorIsOnTheWayWhenTheLinkIsFreeAndBeforeItArrives) {
  const auto late = AssembleSpans({Chunk(0, 0,
                                         {Tensor(v1::SPAN_KIND_SEND, 1, 0, 1, 10, 50),
                                          Tensor(v1::SPAN_KIND_SEND, 1, 1, 1, 20, 80)}),
                                   Chunk(1, 0, {Tensor(v1::SPAN_KIND_RECEIVE, 1, 1, 0, 40, 70)})},
                                  2, 1, 1);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(late->stages[0].spans[0].end_ns, 40);
  EXPECT_EQ(late->stages[0].spans[1].begin_ns, 40);
}

TEST(JobSpansTest, ATensorIsOnTheWayOnceTheLinkIsFree) {
  const auto job = AssembleSpans({Chunk(0, 0,
                                        {Tensor(v1::SPAN_KIND_SEND, 1, 0, 1, 10, 50),
                                         Tensor(v1::SPAN_KIND_SEND, 1, 1, 1, 20, 80),

                                         Tensor(v1::SPAN_KIND_SEND, 1, 0, 2, 15, 90)})},
                                 1, 1, 1);
  ASSERT_TRUE(job.ok()) << job.status();
  std::vector<std::pair<int64_t, int64_t>> down;
  for (const Span& span : job->stages[0].spans) {
    if (span.kind == v1::SPAN_KIND_SEND && span.peer == 1) {
      down.emplace_back(span.begin_ns, span.end_ns);
    }
  }
  EXPECT_EQ(down, (std::vector<std::pair<int64_t, int64_t>>{{10, 50}, {50, 80}}));
  EXPECT_EQ(job->stages[0].spans[1].peer, 2);  // another link, beside
  EXPECT_EQ(job->stages[0].spans[1].end_ns, 90);
}

// The second report's offset was measured better: its first span would begin within the first's.
TEST(JobSpansTest, SpansOfOneThreadNeverOverlap) {
  const auto job = AssembleSpans({Chunk(0, 0, {Compute(v1::SPAN_KIND_FORWARD, 1, 0, 100, 200)}),
                                  Chunk(0, -150,
                                        {Compute(v1::SPAN_KIND_BACKWARD, 1, 0, 260, 340),
                                         Compute(v1::SPAN_KIND_OPTIMIZER, 1, -1, 340, 400)})},
                                 1, 1, 1);
  ASSERT_TRUE(job.ok()) << job.status();
  for (size_t i = 1; i < job->stages[0].spans.size(); ++i) {
    const Span& before = job->stages[0].spans[i - 1];
    const Span& span = job->stages[0].spans[i];
    EXPECT_GE(span.begin_ns, before.end_ns) << i;
    EXPECT_GE(span.end_ns, span.begin_ns) << i;
  }
}

TEST(JobSpansTest, RefusesWhatIsNoTrace) {
  const v1::StageTrace chunk = Chunk(2, 0, {Compute(v1::SPAN_KIND_FORWARD, 1, 0, 1, 2)});
  EXPECT_EQ(AssembleSpans({chunk}, 2, 1, 1).status().message(),
            "the coordinator sent a trace of stage 2 of a job of 2 stages");
  EXPECT_EQ(AssembleSpans({chunk}, 3, 2, 4).status().message(),
            "nothing is recorded of steps 2 to 4");
  v1::StageTrace broken = chunk;
  broken.clear_kind();
  EXPECT_EQ(AssembleSpans({broken}, 3, 1, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headrace
