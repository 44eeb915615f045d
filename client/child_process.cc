#include "client/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/process.h"

namespace headrace {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(10);
constexpr int kTailLines = 15;
constexpr std::streamoff kTailBytes = 16 << 10;

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) {
    return absl::StrCat("was ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)),
                        ")");
  }
  return absl::StrCat("ended with exit code ", WEXITSTATUS(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::string& name, const std::string& program, const std::vector<std::string>& arguments,
    const std::string& log, LogMode mode) {
  if (access(program.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot start ", name, ": no program ", program, " (", strerror(errno), ")"));
  }
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::string parent = absl::StrCat(kParentPidVariable, "=", getpid());
  std::vector<char*> environment = {const_cast<char*>(parent.c_str())};
  for (char** own = environ; *own != nullptr; ++own) environment.push_back(*own);
  environment.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  const auto cleanup = absl::MakeCleanup([&] {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  });
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(
      &files, STDOUT_FILENO, log.c_str(),
      O_WRONLY | O_CREAT | O_APPEND | (mode == LogMode::kAfresh ? O_TRUNC : 0), 0644);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, program.c_str(), &files, &attributes, argv.data(), environment.data());
  if (error != 0) {
    return absl::InternalError(
        absl::StrCat("cannot start ", name, " (", program, ", log ", log, "): ", strerror(error)));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(name, pid, log));
}

absl::Status ChildProcess::CheckRunning() {
  int status = 0;
  if (!wait_status_.has_value() && waitpid(pid_, &status, WNOHANG) == pid_) wait_status_ = status;
  if (!wait_status_.has_value()) return absl::OkStatus();
  const std::string tail = LogTail(log_, kTailLines);
  return absl::AbortedError(absl::StrCat(name_, " ", HowItEnded(*wait_status_), "; its log ", log_,
                                         tail.empty() ? " is empty" : " ends with:\n", tail));
}

void ChildProcess::Terminate() {
  if (!CheckRunning().ok()) return;
  kill(pid_, SIGTERM);
  kill(pid_, SIGCONT);  // a stopped one would not hear it
}

void ChildProcess::Join(absl::Time deadline) {
  while (CheckRunning().ok() && absl::Now() < deadline) absl::SleepFor(kPoll);
  if (wait_status_.has_value()) return;
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  wait_status_ = status;
}

std::string LogTail(const std::string& path, int lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTailBytes));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string> all = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (static_cast<int>(all.size()) > lines) all.erase(all.begin(), all.end() - lines);
  return all.empty() ? "" : absl::StrCat("  ", absl::StrJoin(all, "\n  "));
}

int64_t ProcessStartTime(pid_t pid) {
  const auto stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!stat.ok()) return 0;
  // Field 22; the second, the name in parentheses, may hold anything.
  const size_t name_end = stat->rfind(')');
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields = absl::StrSplit(stat->substr(name_end + 1), ' ');
  int64_t ticks = 0;
  // fields[0] is empty, fields[1] the state (field 3): a zombie is gone.
  if (fields.size() <= 20 || fields[1] == "Z" || !absl::SimpleAtoi(fields[20], &ticks)) return 0;
  return ticks;
}

}  // namespace headrace
