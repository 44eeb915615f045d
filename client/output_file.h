// Where a command leaves a file: a path, or `-` for stdout.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/console.h"

namespace headrace {

// A file is whole or was not touched; what exists and is no file (a pipe, /dev/null) is written to.
//   INVALID_ARGUMENT  cannot be written: says why, after `flag` and the path
absl::Status WriteOutput(const std::string& flag, const std::string& path, std::string_view content,
                         const Console& console);

}  // namespace headrace
