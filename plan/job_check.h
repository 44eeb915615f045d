// Every check of a job's meaning, shared by the client (before it submits) and the coordinator
// (before it believes). What YAML can express wrongly, such as unknown keys and wrong types, is the
// client's.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// `dataset` may be null: the tokens are not known yet.
//   INVALID_ARGUMENT  begins with the key's path in the job file and ": ", then says the value and
//   what
//                     was expected: "training.micro_batches: 9; expected 1 to 8 (batch_size)"
absl::Status ValidateJob(const v1::JobSpec& spec, const v1::Dataset* dataset = nullptr);

// How many of a dataset's tokens validate: its last ones, data.validation_split (default 0.1) of
// all, rounded down. The others train.
int64_t ValidationTokens(const v1::DataSpec& data, int64_t num_tokens);

}  // namespace headrace
