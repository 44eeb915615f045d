#include "worker/pipeline/span_recorder.h"

#include <thread>
#include <utility>
#include <vector>

#include "common/steady_clock.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

Span At(int64_t step) { return Span{v1::SPAN_KIND_FORWARD, step, 0}; }

std::vector<int64_t> Steps(const v1::StageTrace& trace) {
  std::vector<int64_t> steps;
  const std::vector<Span> spans = *UnpackSpans(trace);
  for (const Span& span : spans) steps.push_back(span.step);
  return steps;
}

TEST(SpanRecorderTest, ReportsEachSpanOnce) {
  SpanRecorder spans(8);
  spans.Add(At(1));
  spans.Add(At(2));
  v1::StageTrace trace = spans.Drain();
  EXPECT_EQ(Steps(trace), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(trace.first_step(), 1);
  EXPECT_EQ(trace.last_step(), 2);
  spans.Add(At(3));
  EXPECT_EQ(Steps(spans.Drain()), (std::vector<int64_t>{3}));
  EXPECT_EQ(spans.Drain().ByteSizeLong(), 0u);
}

TEST(SpanRecorderTest, OfTooManySpansTheLatestAreKeptAndTheOthersCounted) {
  SpanRecorder spans(3);
  for (int64_t step = 1; step <= 5; ++step) spans.Add(At(step));
  v1::StageTrace trace = spans.Drain();
  EXPECT_EQ(Steps(trace), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(trace.dropped(), 2);
  spans.Add(At(6));
  trace = spans.Drain();
  EXPECT_EQ(Steps(trace), (std::vector<int64_t>{6}));
  EXPECT_EQ(trace.dropped(), 0);
}

TEST(SpanRecorderTest, HasRoomForTwoStepsOfItsJob) {
  StageJob job;
  job.micro_batches.resize(4);
  SpanRecorder spans(job);
  for (int i = 0; i < 2 * (32 + 4 * 15); ++i) spans.Add(At(1));
  EXPECT_EQ(spans.Drain().dropped(), 0);
}

TEST(SpanRecorderTest, ATensorHasLeftWhenItsDepartureGoes) {
  SpanRecorder spans(8);
  Span sent = At(7);
  sent.kind = v1::SPAN_KIND_SEND;
  sent.begin_ns = SteadyNanos() - 1000;
  {
    Departure first(&spans, sent);
    Departure second = std::move(first);
    second.Start();  // it had to wait for a credit
    EXPECT_EQ(spans.Drain().begin_ns_size(), 0);
    std::vector<Departure> queue;
    queue.push_back(std::move(second));
    EXPECT_EQ(spans.Drain().begin_ns_size(), 0);
  }
  const std::vector<Span> recorded = *UnpackSpans(spans.Drain());
  ASSERT_EQ(recorded.size(), 1u);
  EXPECT_GE(recorded[0].begin_ns, sent.begin_ns + 1000);
  EXPECT_GE(recorded[0].end_ns, recorded[0].begin_ns);
  EXPECT_EQ(recorded[0].step, 7);
}

TEST(SpanRecorderTest, TakesSpansFromSeveralThreadsWhileItReports) {
  SpanRecorder spans(1 << 12);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&spans] {
      for (int i = 0; i < 500; ++i) spans.Add(At(i));
    });
  }
  size_t reported = 0;
  for (int i = 0; i < 100; ++i) reported += Steps(spans.Drain()).size();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reported + Steps(spans.Drain()).size(), 1500u);
}

}  // namespace
}  // namespace headrace
