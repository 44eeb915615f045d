// When the state is kept, and when all stages leave: stage 0 looks at this as it decides a step,
// and the verdict tells the others (pipeline/verdict.h).
//
//   checkpoint   after each step that is a multiple of every_steps, when every_minutes have passed
//                since the last, or asked for
//   replicate    after each multiple of replicate_every, or 10 s after the last snapshot; later
//                where compute would stand still for more than 2 % of the time, or writing and
//                sending go on for more than 5 %
//   leave        asked for: a checkpoint, and then every stage ends
//
// A checkpoint that is due while the last one is not written yet waits for the first step after
// that, or, if it is due by its step, is left out: the next multiple has its turn. A snapshot for a
// neighbour waits until nothing else is being written.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "headrace/v1/job.pb.h"
#include "worker/pipeline/verdict.h"

namespace headrace {

// How far this stage is with those it took (snapshotter.h).
struct SnapshotProgress {
  bool idle = true;              // nothing is being written
  bool takes_checkpoint = true;  // there is room in the queue for a checkpoint
  absl::Duration copy = {};      // compute stood still for the last one
  absl::Duration write = {};     // from then until the last one was where it belongs
};

// Thread-safe.
class SnapshotSchedule {
 public:
  // Time counts from here. `steps`: the job's last. `clock` must outlive it.
  SnapshotSchedule(const v1::CheckpointSpec& spec, int64_t steps,
                   const Clock* clock = Clock::Real());

  // A checkpoint, or also the end of the stage, after the step that is decided next. Any thread.
  void Ask(bool checkpoint, bool leave);

  struct Due {
    Verdict verdict;
    std::string left_out;  // not empty: why a checkpoint that is due is not taken
  };
  // What is due after `step`, which is being decided; it counts as done.
  Due After(int64_t step, const SnapshotProgress& progress);

 private:
  bool ReplicateIsDue(int64_t step, const SnapshotProgress& progress, absl::Time now) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const v1::CheckpointSpec spec_;
  const int64_t steps_;
  const Clock* const clock_;
  const absl::Duration every_;  // infinite: not by time

  absl::Mutex mu_;
  bool checkpoint_asked_ ABSL_GUARDED_BY(mu_) = false;
  bool leave_asked_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time last_checkpoint_ ABSL_GUARDED_BY(mu_);
  absl::Time last_snapshot_ ABSL_GUARDED_BY(mu_);  // of any kind
};

}  // namespace headrace
