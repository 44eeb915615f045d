#include "coordinator/trace_pages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/span.h"

namespace headrace {
namespace {

v1::Job AJob(int64_t step, v1::JobState state = v1::JOB_STATE_RUNNING) {
  v1::Job job;
  job.set_id("j3");
  job.set_state(state);
  job.set_step(step);
  return job;
}

// One chunk of each of two stages for each step.
v1::JobTrace Kept(int64_t dropped_step, int64_t last_step, int spans = 1) {
  v1::JobTrace trace;
  trace.set_dropped_step(dropped_step);
  for (int64_t step = dropped_step + 1; step <= last_step; ++step) {
    for (int64_t stage : {0, 1}) {
      v1::StageTrace* chunk = trace.add_traces();
      PackSpans(std::vector<Span>(spans, Span{v1::SPAN_KIND_FORWARD, step}), chunk);
      chunk->set_stage(stage);
      chunk->set_number(trace.traces_size());
    }
  }
  return trace;
}

absl::StatusOr<v1::ListJobTracesResponse> Page(const v1::Job& job, const v1::JobTrace& trace,
                                               int64_t first, int64_t last, int64_t after = 0) {
  v1::ListJobTracesRequest request;
  request.set_first_step(first);
  request.set_last_step(last);
  request.set_after(after);
  return PageOfTrace(job, trace, request);
}

std::string Refusal(const v1::Job& job, const v1::JobTrace& trace, int64_t first, int64_t last) {
  return std::string(Page(job, trace, first, last).status().message());
}

TEST(TracePagesTest, GivesTheChunksOfTheStepsAskedFor) {
  const auto page = Page(AJob(9), Kept(4, 9), 6, 7);
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->traces_size(), 4);
  EXPECT_EQ(page->traces(0).first_step(), 6);
  EXPECT_EQ(page->traces(3).first_step(), 7);
  EXPECT_EQ(page->first_step(), 6);
  EXPECT_EQ(page->last_step(), 7);
}

TEST(TracePagesTest, WithoutARangeItIsTheLastFinishedStep) {
  EXPECT_EQ(Page(AJob(8), Kept(4, 9), 0, 0)->last_step(), 8);
  EXPECT_EQ(Page(AJob(0, v1::JOB_STATE_FAILED), Kept(0, 1), 0, 0)->last_step(), 1);
}

TEST(TracePagesTest, PagesEndWhereTheNextOneBegins) {
  const v1::JobTrace trace = Kept(0, 8, 100'000);
  int64_t after = 0;
  int chunks = 0, pages = 0;
  while (true) {
    const auto page = Page(AJob(8), trace, 1, 8, after);
    ASSERT_TRUE(page.ok()) << page.status();
    if (page->traces().empty()) break;
    ++pages;
    for (const v1::StageTrace& chunk : page->traces()) {
      EXPECT_EQ(chunk.number(), after + 1);
      after = chunk.number();
      ++chunks;
    }
  }
  EXPECT_EQ(chunks, 16);
  EXPECT_GT(pages, 2);
}

TEST(TracePagesTest, SaysWhichStepsAreKept) {
  EXPECT_EQ(Refusal(AJob(9), Kept(4, 9), 1, 6),
            "steps 1 to 6 of job j3: not all kept; steps 5 to 9 are");
  EXPECT_EQ(Refusal(AJob(9), Kept(8, 9), 10, 10), "step 10 of job j3: not kept; step 9 is");
  EXPECT_EQ(Refusal(AJob(9), Kept(4, 9), 6, 5), "steps 6 to 5: not a range; steps count from 1");
  EXPECT_EQ(Refusal(AJob(9), Kept(4, 9), -1, 5), "steps -1 to 5: not a range; steps count from 1");
  EXPECT_EQ(Refusal(AJob(0, v1::JOB_STATE_QUEUED), {}, 0, 0),
            "job j3 has done no step yet: it is QUEUED");
  EXPECT_EQ(Refusal(AJob(0, v1::JOB_STATE_CANCELLED), {}, 1, 1),
            "job j3 has done no step: it is CANCELLED");
  EXPECT_EQ(Refusal(AJob(7, v1::JOB_STATE_DONE), {}, 1, 1),
            "no step of job j3 is kept: traces are kept of running jobs and of the last 32 that "
            "ended while their coordinator ran");
}

}  // namespace
}  // namespace headrace
