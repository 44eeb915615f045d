#include "coordinator/trace_buffer.h"

#include <gtest/gtest.h>

#include <vector>

#include "plan/span.h"

namespace headrace {
namespace {

v1::StageTrace Chunk(int64_t step, int spans = 1) {
  v1::StageTrace trace;
  PackSpans(std::vector<Span>(spans, Span{v1::SPAN_KIND_FORWARD, step}), &trace);
  return trace;
}

int64_t BytesOf(const v1::StageTrace& trace) {
  TraceBuffer buffer;
  buffer.Add("j1", 0, trace);
  return static_cast<int64_t>(buffer.Find("j1")->traces(0).ByteSizeLong());
}

TEST(TraceBufferTest, GivesBackTheChunksOfAJobInOrderWithNumbersAndStages) {
  TraceBuffer buffer;
  buffer.Add("j1", 0, Chunk(1));
  buffer.Add("j2", 0, Chunk(9));
  buffer.Add("j1", 1, Chunk(1));
  buffer.Add("j1", 0, v1::StageTrace());  // nothing to keep
  const auto trace = buffer.Find("j1");
  ASSERT_TRUE(trace.has_value());
  ASSERT_EQ(trace->traces_size(), 2);
  EXPECT_EQ(trace->traces(0).number(), 1);
  EXPECT_EQ(trace->traces(1).number(), 2);
  EXPECT_EQ(trace->traces(1).stage(), 1);
  EXPECT_EQ(trace->dropped_step(), 0);
  EXPECT_FALSE(buffer.Find("j3").has_value());
}

TEST(TraceBufferTest, DropsTheOldestChunksAndSaysUpToWhichStep) {
  TraceBuffer buffer(3 * BytesOf(Chunk(1)));
  for (int64_t step = 1; step <= 5; ++step) buffer.Add("j1", 0, Chunk(step));
  const auto trace = buffer.Find("j1");
  ASSERT_EQ(trace->traces_size(), 3);
  EXPECT_EQ(trace->traces(0).first_step(), 3);
  EXPECT_EQ(trace->dropped_step(), 2);
}

TEST(TraceBufferTest, JobsShareTheBytesOfAll) {
  const int64_t bytes = BytesOf(Chunk(1));
  TraceBuffer buffer(4 * bytes, 4 * bytes);
  for (int64_t step = 1; step <= 4; ++step) buffer.Add("j1", 0, Chunk(step));
  EXPECT_EQ(buffer.Find("j1")->traces_size(), 4);
  for (int64_t step = 1; step <= 4; ++step) buffer.Add("j2", 0, Chunk(step));
  EXPECT_EQ(buffer.Find("j2")->traces_size(), 2);
  buffer.Add("j1", 0, Chunk(5));
  EXPECT_EQ(buffer.Find("j1")->traces_size(), 2);
  buffer.Forget("j2");
  EXPECT_FALSE(buffer.Find("j2").has_value());
  buffer.Add("j1", 0, Chunk(6));
  EXPECT_EQ(buffer.Find("j1")->traces_size(), 3);
}

TEST(TraceBufferTest, AChunkLargerThanItsShareIsNotKept) {
  TraceBuffer buffer(2 * BytesOf(Chunk(1)));
  buffer.Add("j1", 0, Chunk(1));
  buffer.Add("j1", 0, Chunk(2, 1000));
  EXPECT_EQ(buffer.Find("j1")->traces_size(), 0);
  EXPECT_EQ(buffer.Find("j1")->dropped_step(), 2);
}

}  // namespace
}  // namespace headrace
