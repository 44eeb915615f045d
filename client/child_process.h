// One program started beside this one, its output in a log file.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace headrace {

enum class LogMode { kAfresh, kAppend };

// Used by one thread. Forgetting to stop it leaves the program running (that is what `up` does).
class ChildProcess {
 public:
  // Starts `program` in a session of its own, so that Ctrl-C in the terminal reaches the client
  // alone; stdin is empty, stdout and stderr go to `log`.
  //   FAILED_PRECONDITION  no such program (says where it was looked for)
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::string& name, const std::string& program,
      const std::vector<std::string>& arguments, const std::string& log,
      LogMode mode = LogMode::kAfresh);

  pid_t pid() const { return pid_; }
  const std::string& name() const { return name_; }

  // OK while it runs; else ABORTED: how it ended, and the last lines of its log.
  absl::Status CheckRunning();

  void Terminate();  // SIGTERM; returns at once
  // Waits for its end until `deadline`, then kills it; reaps it either way.
  void Join(absl::Time deadline);

 private:
  ChildProcess(std::string name, pid_t pid, std::string log)
      : name_(std::move(name)), log_(std::move(log)), pid_(pid) {}

  const std::string name_, log_;
  const pid_t pid_;
  std::optional<int> wait_status_;  // set once it has ended
};

// The last `lines` lines of a file, each indented by two; "" if there are none.
std::string LogTail(const std::string& path, int lines);

// When the process started, in clock ticks since boot: with its pid a name nobody else ever has. 0:
// gone.
int64_t ProcessStartTime(pid_t pid);

}  // namespace headrace
