// What stage 0 decides about a step, for all stages. It goes down the pipeline with the norm and the
// loss (update.h), as the message's third number, ahead of the next step's activations: so all
// stages do the same after the same step, and nobody asks the coordinator.
//
//   bit   1 stop   2 skip   4 rollback   8 checkpoint   16 replicate   32 leave      none: go on
#pragma once

#include "absl/status/statusor.h"

namespace headrace {

enum class Fate {
  kApply,
  kStop,      // not applied, and no further step runs: the weights stay as they are
  kSkip,      // not applied, the next step goes on
  kRollback,  // not applied, all stages end: to go on from an earlier state
};

struct Verdict {
  Fate fate = Fate::kApply;
  // The state after this step is kept, applied or not: in the store, or by a neighbour.
  bool checkpoint = false, replicate = false;
  bool leave = false;  // after its checkpoint all stages end

  bool applied() const { return fate == Fate::kApply; }
  // No step follows, and this one has no state of its own.
  bool breaks_off() const { return fate == Fate::kStop || fate == Fate::kRollback; }

  friend bool operator==(const Verdict&, const Verdict&) = default;
};

double NumberOf(const Verdict& verdict);
// The same back. INVALID_ARGUMENT: no verdict has this number.
absl::StatusOr<Verdict> VerdictOf(double number);

}  // namespace headrace
