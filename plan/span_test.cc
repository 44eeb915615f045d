#include "plan/span.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

std::vector<Span> SomeSpans() {
  return {{v1::SPAN_KIND_FORWARD, 7, 0, v1::MESSAGE_KIND_UNSPECIFIED, -1, 0, 1'000'000'000, 1'500},
          {v1::SPAN_KIND_SEND, 6, 3, v1::MESSAGE_KIND_ACTIVATION, 1, 4096, 900, 2'000'000'000'000},
          {v1::SPAN_KIND_NORM, 7, -1, v1::MESSAGE_KIND_UNSPECIFIED, -1, 0, 2'000, 2'000}};
}

TEST(SpanTest, PackedSpansComeBackAsTheyWere) {
  std::vector<Span> spans = SomeSpans();
  spans[0].end_ns = spans[0].begin_ns + 1'500;
  v1::StageTrace packed, read;
  PackSpans(spans, &packed);
  ASSERT_TRUE(read.ParseFromString(packed.SerializeAsString()));
  EXPECT_EQ(read.first_step(), 6);
  EXPECT_EQ(read.last_step(), 7);
  const auto unpacked = UnpackSpans(read);
  ASSERT_TRUE(unpacked.ok()) << unpacked.status();
  EXPECT_EQ(*unpacked, spans);
}

TEST(SpanTest, NoSpansAreNoColumns) {
  v1::StageTrace packed;
  PackSpans({}, &packed);
  EXPECT_EQ(packed.ByteSizeLong(), 0u);
  EXPECT_TRUE(UnpackSpans(packed)->empty());
}

TEST(SpanTest, WhatAWorkerMayNotSendIsRefused) {
  v1::StageTrace packed;
  PackSpans(SomeSpans(), &packed);  // the first span ends before it begins
  packed.set_stage(3);
  EXPECT_EQ(UnpackSpans(packed).status().message(), "span 0 of stage 3 ends before it begins");
  packed.add_step(1);
  EXPECT_EQ(UnpackSpans(packed).status().message(),
            "the trace of stage 3 has columns of different lengths");
}

}  // namespace
}  // namespace headrace
