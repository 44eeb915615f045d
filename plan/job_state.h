// What a job's state means to both sides of the wire.
#pragma once

#include "headrace/v1/job.pb.h"

namespace headrace {

// Nothing more happens to it by itself; resuming it may still be asked for.
inline bool HasEnded(v1::JobState state) {
  return state == v1::JOB_STATE_DONE || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

}  // namespace headrace
