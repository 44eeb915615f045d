// Moves slices between workers, and onto this one from wherever there is one. What is sent lies on
// a disk on both sides: in memory is one chunk of 256 KiB at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "headrace/v1/cluster.grpc.pb.h"
#include "headrace/v1/worker.grpc.pb.h"
#include "worker/checkpoint/slice_store.h"

namespace headrace {

inline constexpr int64_t kSliceChunkBytes = 256 << 10;

// Both end at once, with CANCELLED, when `cancellation` (may be null) is cancelled.

// Gives the file at `path`, whose hash is `sha256`, to the worker behind `stub`, which serves a
// stage of the same job and generation. One try.
//   what PutSlice answers
//   UNAVAILABLE, DEADLINE_EXCEEDED  it is not there, or not by `deadline`
//   the system's error              the file cannot be read
absl::Status SendSlice(v1::StageService::StubInterface* stub, const std::string& job_id,
                       int64_t generation, int64_t step, const std::string& sha256,
                       const std::string& path, absl::Time deadline, Cancellation* cancellation);

// Where on this disk the slice lies, its hash verified; fetched first if need be, from the workers
// that hold it, else from its uri, else (without one) from the coordinator's store. Each source is
// asked in turn; one that fails on the way is gone on from by the next where it stopped, and all
// are asked again for two seconds while one may only be slow. What comes is kept as `job_id`'s of
// `step`, as an own slice. A copy of this disk that is damaged is deleted.
//   DATA_LOSS           all that can be had is damaged
//   NOT_FOUND           nobody has it; holders that cannot be reached do not count
//   UNAVAILABLE         the store cannot be reached
//   RESOURCE_EXHAUSTED  no room on this disk
//   the system's error  of this disk, or of the uri's folder
// Each says which slice, and what every source said.
absl::StatusOr<std::string> FetchSlice(const v1::WeightsSlice& slice, const std::string& job_id,
                                       int64_t step, SliceStore* store,
                                       v1::CoordinatorService::StubInterface* coordinator,
                                       absl::Time deadline, Cancellation* cancellation);

}  // namespace headrace
