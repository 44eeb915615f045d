// YAML → JSON → JobSpec, without judging whether the values make sense together.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

// Fills `spec`, and `lines` with the line (from 1) of every key by its path. `path` is for
// messages.
//   INVALID_ARGUMENT  "FILE:LINE: key.path: what was wrong; expected …": not YAML, no mapping, more
//                     than one document, unknown or repeated key, missing value, wrong type or word
absl::Status ParseJobYaml(const std::string& text, const std::string& path, v1::JobSpec* spec,
                          std::map<std::string, int>* lines);

}  // namespace headrace
