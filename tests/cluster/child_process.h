// A child process of a test that cannot outlive it: the kernel kills it with the test, the
// destructor before that. Start from a thread that lives as long as the test (the main one): the
// kernel takes the starting thread's end for the parent's.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace headrace {

class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> arguments;    // the program's path first
    std::vector<std::string> environment;  // "KEY=value", added to the test's own
    std::string stdout_path;               // files; what is there is kept, new output follows
    std::string stderr_path;               // may be the same
    std::string directory;                 // to run in; empty: the test's
  };

  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const Options& options);
  // Kills it, stopped or not, and waits for that.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Signal(int number);
  // The exit code, or 128 + signal. Any number of times.
  //   DEADLINE_EXCEEDED  it still runs
  absl::StatusOr<int> Wait(absl::Time deadline);
  bool running();
  pid_t pid() const { return pid_; }

 private:
  ChildProcess(pid_t pid, int pid_fd) : pid_(pid), pid_fd_(pid_fd) {}

  const pid_t pid_;
  const int pid_fd_;  // readable once the process has ended
  bool reaped_ = false;
  int exit_code_ = 0;
};

}  // namespace headrace
