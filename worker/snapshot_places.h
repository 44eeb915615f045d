// Where a stage's snapshots go from its worker's disk: to the worker of the next stage (of the last
// one's, to the first), and into the job's store.
#pragma once

#include "common/cancellation.h"
#include "worker/checkpoint/snapshotter.h"
#include "worker/pipeline/stage_job.h"
#include "worker/worker_context.h"

namespace headrace {

// `job`, what `context` points to and `cancellation` must outlive them.
SnapshotPlaces PlacesOf(const StageJob& job, const WorkerContext& context,
                        Cancellation* cancellation);

}  // namespace headrace
