// One call of the job machine: when, and where its commands go.
#pragma once

#include "absl/time/time.h"
#include "coordinator/job_messages.h"

namespace headrace {

struct Turn {
  absl::Time now;
  Commands* out;
};

inline double UnixSeconds(absl::Time time) {
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

}  // namespace headrace
