// The job file: YAML in, JobSpec out (docs/job-file.md). YAML is walked along the proto's
// descriptor into JSON, JSON is parsed into the message; so every key of the proto is a key of the
// file, and nothing else is.
//
// Every error is INVALID_ARGUMENT and reads "FILE:LINE: key.path: what was wrong; expected …".
// Nothing in a file can crash the program: size and nesting are bounded, and aliases are only
// followed where the proto has a key.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

inline constexpr int64_t kMaxJobFileBytes = 1 << 20;

struct JobFile {
  std::string path;
  v1::JobSpec spec;
  std::map<std::string, int>
      lines;  // key path ("training.optimizer.groups[1].match") → line from 1

  // Puts "FILE:LINE: " before a message that begins with a key path; the line is the key's, or of
  // its nearest section in the file. INVALID_ARGUMENT whatever the code was; OK stays OK.
  absl::Status Locate(const absl::Status& status) const;

  // A path of the job file, relative ones from the file's own folder.
  std::string Resolve(absl::string_view relative) const;
};

// Reads, parses and validates (plan/job_check.h). Does not touch the data the job names.
absl::StatusOr<JobFile> ReadJobFile(const std::string& path);

// The same from memory; `path` is for messages and relative paths only.
absl::StatusOr<JobFile> ParseJobFile(const std::string& text, const std::string& path);

}  // namespace headrace
