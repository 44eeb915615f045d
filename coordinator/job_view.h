// What clients are sent of a job, so that it fits a message: they take 8 MiB. Pure.
#pragma once

#include "headrace/v1/job.pb.h"

namespace headrace {

// For GetJob. A job with very many checkpoints: without the slices of all but the last sound one.
void TrimForReader(v1::Job* job);

// For WatchJob, where it comes again with every change: without flight records, and without the
// slices of checkpoints.
void TrimForWatcher(v1::Job* job);

}  // namespace headrace
