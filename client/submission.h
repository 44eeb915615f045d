// From a job file to a job in the queue, and from there to its end: what submit, run and watch
// share.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/coordinator.h"
#include "client/dataset.h"
#include "client/environment.h"
#include "client/job_file.h"

namespace headrace {

// Uploads what the store lacks (progress on a terminal's stderr) and submits.
absl::StatusOr<v1::SubmitJobResponse> Submit(Coordinator* coordinator, const JobFile& file,
                                             const PreparedDataset& dataset,
                                             const v1::JobOptions& options,
                                             const Environment& environment);

// Follows the job to its end. With Format::kText progress goes to stderr, else every update is one
// line of JSON on stdout. Returns the whole job, steps and flight records included. Errors as
// Coordinator::FollowJob.
absl::StatusOr<v1::Job> WatchToEnd(Coordinator* coordinator, const std::string& job,
                                   absl::Time deadline, Format format,
                                   const Environment& environment);

// `status` of a watch that stopped early, with how to go on watching the job, which runs on.
absl::Status StillRunning(const absl::Status& status, const std::string& job);

}  // namespace headrace
