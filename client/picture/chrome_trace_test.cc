#include "client/picture/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "client/render/json.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;

v1::Job TwoStages() {
  v1::Job job;
  job.set_id("j3");
  job.set_name("tiny \"quoted\"");
  job.mutable_plan()->set_stages(2);
  job.mutable_plan()->set_micro_batches(1);
  job.mutable_plan()->set_schedule(v1::SCHEDULE_KIND_1F1B);
  for (const char* worker : {"w0", "w1"}) job.mutable_plan()->add_stage()->set_worker(worker);
  return job;
}

JobSpans OneTensorDown() {
  JobSpans spans;
  spans.first_step = spans.last_step = 7;
  spans.begin_ns = 1'000'000;
  spans.end_ns = 1'009'000;
  spans.stages.resize(2);
  const auto tensor = [](v1::SpanKind kind, int peer, int64_t begin_ns, int64_t end_ns) {
    return Span{kind, 7, 0, v1::MESSAGE_KIND_ACTIVATION, peer, 64, begin_ns, end_ns};
  };
  spans.stages[0].spans = {
      {v1::SPAN_KIND_FORWARD, 7, 0, v1::MESSAGE_KIND_UNSPECIFIED, -1, 0, 1'000'000, 1'002'500},
      tensor(v1::SPAN_KIND_SEND, 1, 1'002'500, 1'004'000)};
  spans.stages[1].spans = {
      tensor(v1::SPAN_KIND_WAIT_RECEIVE, 0, 1'001'000, 1'004'200),
      tensor(v1::SPAN_KIND_RECEIVE, 0, 1'003'000, 1'004'000),
      {v1::SPAN_KIND_NORM, 7, -1, v1::MESSAGE_KIND_UNSPECIFIED, -1, 0, 1'005'000, 1'009'000}};
  spans.stages[1].clock_error_ns = 1'500;
  spans.stages[1].dropped = 2;
  return spans;
}

Json Events(const Json& trace, const std::string& phase) {
  Json events = Json::array();
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) events.push_back(event);
  }
  return events;
}

TEST(ChromeTraceTest, AStageIsAProcessWithItsThreadsAndSpans) {
  const Json trace = Json::parse(ChromeTrace(TwoStages(), OneTensorDown()));
  std::map<std::string, std::vector<std::string>> threads;
  for (const Json& event : Events(trace, "M")) {
    if (event.at("name") == "process_name") {
      threads[event.at("args").at("name")];
    } else if (event.at("name") == "thread_name") {
      threads[event.at("pid") == 0 ? "stage 0 (w0)" : "stage 1 (w1)"].push_back(
          event.at("args").at("name"));
    }
  }
  EXPECT_THAT(threads["stage 0 (w0)"], ElementsAre("compute", "send to stage 1"));
  EXPECT_THAT(threads["stage 1 (w1)"], ElementsAre("compute", "receive from stage 0"));

  const Json spans = Events(trace, "X");
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(spans[0].at("name"), "F0");
  EXPECT_EQ(spans[0].at("ts"), 0.0);
  EXPECT_EQ(spans[0].at("dur"), 2.5);
  EXPECT_EQ(spans[0].at("args").at("step"), 7);
  EXPECT_EQ(spans[1].at("name"), "activation 0");
  EXPECT_EQ(spans[1].at("args").at("bytes"), 64);
  EXPECT_EQ(spans[2].at("name"), "wait for activation 0 from stage 0");
  EXPECT_EQ(spans[4].at("name"), "norm");
}

TEST(ChromeTraceTest, AnArrowLeadsFromSendingToReceiving) {
  const Json trace = Json::parse(ChromeTrace(TwoStages(), OneTensorDown()));
  const Json starts = Events(trace, "s"), ends = Events(trace, "f");
  ASSERT_EQ(starts.size(), 1u);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(starts[0].at("id"), ends[0].at("id"));
  EXPECT_EQ(starts[0].at("pid"), 0);
  EXPECT_EQ(starts[0].at("ts"), 2.5);
  EXPECT_EQ(ends[0].at("pid"), 1);
  EXPECT_EQ(ends[0].at("ts"), 3.5);
  EXPECT_EQ(ends[0].at("bp"), "e");
}

TEST(ChromeTraceTest, SaysWhatItShowsAndHowFarClocksMayBeOff) {
  JobSpans spans = OneTensorDown();
  spans.stages[0].clock_known = false;
  const Json about = Json::parse(ChromeTrace(TwoStages(), spans)).at("otherData");
  EXPECT_EQ(about.at("name"), "tiny \"quoted\"");
  EXPECT_EQ(about.at("first_step"), 7);
  EXPECT_EQ(about.at("schedule"), "K = 2 stages, M = 1 micro-batch, 1f1b, recompute unspecified");
  EXPECT_TRUE(about.at("stages")[0].at("clock_error_us").is_null());
  EXPECT_EQ(about.at("stages")[1].at("clock_error_us"), 1.5);
  EXPECT_EQ(about.at("stages")[1].at("dropped_spans"), 2);
  EXPECT_EQ(about.at("stages")[1].at("worker"), "w1");
}

TEST(ChromeTraceTest, NamesSpans) {
  Span span{v1::SPAN_KIND_WAIT_SEND, 1, 3, v1::MESSAGE_KIND_GRADIENT, 2};
  EXPECT_EQ(NameOf(span), "wait for a credit for gradient 3 to stage 2");
  span.peer = -1;
  EXPECT_EQ(NameOf(span), "wait for memory for gradient 3");
  EXPECT_EQ(NameOf({v1::SPAN_KIND_SEND, 1, -1, v1::MESSAGE_KIND_TIED_GRADIENT, 0}),
            "tied gradient");
  EXPECT_EQ(NameOf({v1::SPAN_KIND_BACKWARD, 1, 31}), "B31");
  EXPECT_EQ(NameOf({v1::SPAN_KIND_ZERO_GRADIENTS, 1, -1}), "zero gradients");
  EXPECT_EQ(NameOf({static_cast<v1::SpanKind>(77), 1, -1}), "span 77");
}

}  // namespace
}  // namespace headrace
