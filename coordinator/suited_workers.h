// Which workers may serve a job: simulated ones serve only jobs that ask for them, real ones only
// the others. A job never has both, for a simulated stage sends no numbers. Pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "headrace/v1/cluster.pb.h"

namespace headrace {

std::vector<v1::WorkerInfo> SuitedWorkers(std::vector<v1::WorkerInfo> workers, bool simulate);

// FAILED_PRECONDITION: none of the workers suits, though there are some; says what to do.
absl::Status CheckSuited(const std::vector<v1::WorkerInfo>& workers, bool simulate);

}  // namespace headrace
