// What a job has kept and what befell it, for people: parts of what `describe` prints.
#pragma once

#include <string>

#include "headrace/v1/job.pb.h"

namespace headrace {

// "the coordinator's store", or the folder that a checkpoint's slices lie in.
std::string WhereKept(const v1::Checkpoint& checkpoint);

// The lines under "state": what the job began from, which workers serve it, which steps were left
// out or not applied. `job` has its steps.
std::string RenderCourse(const v1::Job& job);

// Tables with a heading; "" without rows. Recoveries show where each one's time went: until the
// fault was noticed, until workers were found, until they had the state, and until the first step
// that had not been done before.
std::string RenderCheckpoints(const v1::Job& job, int width);
std::string RenderRecoveries(const v1::Job& job, int width);

}  // namespace headrace
