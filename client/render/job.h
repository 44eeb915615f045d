// A job for people: what `describe` and the end of `run` print.
#pragma once

#include <string>

#include "headrace/v1/cluster.pb.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// "running", "recovering", "paused": the word of the proto.
std::string StateWord(v1::JobState state);

// Everything known about the job, section by section; sections without content are left out.
std::string RenderJob(const v1::Job& job, int width);

// One line, such as "job j3 (bible) done: 300 steps, loss 1.8342, weights 1f2e…".
std::string RenderOutcome(const v1::Job& job);

std::string RenderJobTable(const v1::ListJobsResponse& response, double now_unix_s, int width);
std::string RenderWorkerTable(const v1::ListWorkersResponse& response, int width);

// "2026-12-01 05:10:18  w0           connected to stage 1"
std::string RenderEvent(const v1::JobEvent& event);

}  // namespace headrace
