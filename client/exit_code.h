// What the program's exit code says; docs/cli.md and the footer of --help show this table.
#pragma once

#include "absl/status/status.h"

namespace headrace {

enum class ExitCode {
  kDone = 0,
  kJobFailed = 1,  // also: a job cancelled, a replay that differed, any fault of our own
  kUsage = 2,      // command line or job file
  kNotFound = 3,
  kUnreachable = 4,  // no coordinator answers
  kRefused = 5,      // it answered, and the plan does not fit or the state forbids it
  kTimedOut = 124,
  kInterrupted = 130,
};

inline constexpr char kExitCodeHelp[] =
    "Exit codes: 0 done, 1 job failed, 2 usage, 3 not found, 4 unreachable, 5 refused,\n"
    "124 timed out, 130 interrupted.";

// The one place where a status becomes an exit code. Commands say "job failed" with ABORTED.
ExitCode ExitCodeOf(const absl::Status& status);

}  // namespace headrace
