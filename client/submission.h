// From a job file to a job in the queue, and from there to its end: what submit, run and watch
// share.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/coordinator.h"
#include "client/dataset.h"
#include "client/environment.h"
#include "client/job_file.h"

namespace headrace {

// A checkpoint that a job is to begin from, as `--from` takes it.
struct FromCheckpoint {
  std::string job;   // id or name; empty: from the beginning
  int64_t step = 0;  // 0: its last good one
};

// "j3", "bible@1200".
//   INVALID_ARGUMENT  shows the form
absl::StatusOr<FromCheckpoint> ParseFrom(const std::string& text);

// Uploads what the store lacks (progress on a terminal's stderr) and submits.
absl::StatusOr<v1::SubmitJobResponse> Submit(Coordinator* coordinator, const JobFile& file,
                                             const PreparedDataset& dataset,
                                             const v1::JobOptions& options,
                                             const FromCheckpoint& from,
                                             const Environment& environment);

// Follows the job to its end. With Format::kText progress goes to stderr, else every update is one
// line of JSON on stdout. What is said of a coordinator that is away goes to stderr. Returns the
// whole job, steps and flight records included. Errors as Coordinator::FollowJob.
absl::StatusOr<v1::Job> WatchToEnd(Coordinator* coordinator, const std::string& job,
                                   WaitOptions options, Format format,
                                   const Environment& environment);

// `status` of a watch that stopped early, with how to go on watching the job, which runs on.
absl::Status StillRunning(const absl::Status& status, const std::string& job);

// WatchToEnd for a job that was just put into the queue: says on stderr how it ended, and returns
// its outcome (OutcomeOf).
absl::Status WatchQueued(Coordinator* coordinator, const std::string& job,
                         const WaitOptions& options, Format format, const Environment& environment);

}  // namespace headrace
