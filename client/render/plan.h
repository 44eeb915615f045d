// A plan and its memory for people.
#pragma once

#include <string>
#include <vector>

#include "headrace/v1/job.pb.h"

namespace headrace {

// Sums of a stage's bytes.
int64_t TotalBytes(const v1::MemoryBytes& memory);

// Stages, predicted times and bubble, memory by kind, the schedule's grid. `measured` (one entry a
// stage, or empty) stands beside the predicted bytes. No colour, lines of at most `width` columns
// but for the grid.
std::string RenderPlan(const v1::Plan& plan, const std::vector<v1::MemoryBytes>& measured,
                       int width);

}  // namespace headrace
