// Workers as `headrace plan --workers` takes them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/planner/planner.h"

namespace headrace {

// "4:8GiB,2:24GiB": four workers of 8 GiB (w0 … w3) and two of 24 GiB (w4, w5).
//   INVALID_ARGUMENT  names the part that is wrong and shows the form
absl::StatusOr<std::vector<PlanWorker>> ParseWorkerList(const std::string& text, int threads);

}  // namespace headrace
