// Steps that were left out for good (on_nan: rollback), as ranges with both ends in. Pure.
#pragma once

#include <cstdint>

#include "headrace/v1/job.pb.h"

namespace headrace {

using StepRanges = google::protobuf::RepeatedPtrField<v1::StepRange>;

bool Contains(const StepRanges& ranges, int64_t step);
// Joined with those that it touches; ascending. Nothing for last < first.
void AddRange(int64_t first, int64_t last, StepRanges* ranges);
// The last step of 1 … `steps` that is not left out; 0: all are.
int64_t LastToDo(const StepRanges& ranges, int64_t steps);
// The first step after `step` that is not left out.
int64_t NextToDo(const StepRanges& ranges, int64_t step);

}  // namespace headrace
