// From the file a job names to the token file the blob store holds (docs/format-tokens.md).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/job_file.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

struct PreparedDataset {
  std::string path;  // <cache_dir>/<sha256>.tokens
  v1::Dataset dataset;
};

// Text becomes one-byte tokens; a .bin file's tokens are taken as they are, bare (nanoGPT) or
// behind llm.c's header of 256 int32: magic 20240520, version 1 (uint16) or 20240801, version 7
// (uint32), then the number of tokens. The result is kept in `cache_dir` under its hash, and found
// there next time.
//   INVALID_ARGUMENT  "FILE:LINE: data.…: …": no such file, empty, an odd size, a header that does
//   not
//                     fit the file or `token_type`, a token ≥ the vocabulary (says where the first
//                     one stands), too few tokens for a sequence
absl::StatusOr<PreparedDataset> PrepareDataset(const JobFile& job, const std::string& cache_dir);

}  // namespace headrace
