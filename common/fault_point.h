// Named places in a program at which a test can make it fail, to see what happens then. In builds
// with HEADRACE_FAULT_POINTS (those that build tests) the environment says what to do:
//
//   HEADRACE_FAULT=mid_forward:kill:3             the third time that point is passed, once
//   HEADRACE_FAULT=snapshot:full:2+               each time from the second on
//   HEADRACE_FAULT=step_start:delay=80ms:5,commit:kill
//
//   point            passed by the worker, or the coordinator, when
//   assign           it is told to serve a stage
//   load             it fetches its stage's initial state
//   connect          it opens the stage's links
//   step_start       a step begins
//   mid_forward      a micro-batch's forward has been computed, and is not sent yet
//   mid_backward     likewise, its backward
//   reduce           the step's gradients are whole, its norm is about to be exchanged
//   optimizer        the decision is known, no weight has changed yet
//   snapshot         the stage's state is about to be written to a file
//   commit           (coordinator) a checkpoint is in the transaction and not committed yet
//
//   action           what happens there
//   kill             the process is gone: SIGKILL
//   abort            it aborts
//   stop             it stops as by SIGSTOP, until somebody continues it
//   error            the point fails: INTERNAL
//   full             the point fails: RESOURCE_EXHAUSTED, as on a full disk
//   delay=DURATION   it takes so much longer ("80ms")
//
// Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace headrace {

enum class FaultAction { kKill, kAbort, kStop, kError, kFull, kDelay };

struct PlannedFault {
  std::string point;
  FaultAction action = FaultAction::kError;
  absl::Duration delay;
  int64_t at = 1;          // the how-manieth pass, from 1
  bool from_then = false;  // and every later one
};

// INVALID_ARGUMENT: which part is wrong, and the words that are expected.
absl::StatusOr<std::vector<PlannedFault>> ParseFaults(const std::string& text);

// What to do at which pass.
class FaultPlan {
 public:
  explicit FaultPlan(std::vector<PlannedFault> faults) : faults_(std::move(faults)) {}

  // Passes the point. What error and full return; the other actions are done before it returns.
  absl::Status Pass(std::string_view point);

 private:
  absl::Mutex mu_;
  const std::vector<PlannedFault> faults_;
  std::vector<int64_t> passed_ ABSL_GUARDED_BY(mu_) = std::vector<int64_t>(faults_.size());
};

// Call once, first. INVALID_ARGUMENT: as ParseFaults.
//   FAILED_PRECONDITION  HEADRACE_FAULT is set, and this build has no fault points
absl::Status ReadFaults();

// Passes one of the points above; OK without HEADRACE_FAULT, and in other builds.
absl::Status FaultPoint(std::string_view point);

}  // namespace headrace
