#include "tests/cluster/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace headrace {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The test's own environment with `added` over it.
std::vector<std::string> Environment(const std::vector<std::string>& added) {
  std::vector<std::string> all = added;
  for (char** own = environ; *own != nullptr; ++own) {
    const std::string_view entry = *own;
    const std::string_view key = entry.substr(0, entry.find('=') + 1);
    const bool replaced = std::any_of(added.begin(), added.end(), [&](const std::string& a) {
      return std::string_view(a).substr(0, key.size()) == key;
    });
    if (!replaced) all.emplace_back(entry);
  }
  return all;
}

int OpenForAppending(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

// Between fork and exec: only calls that are safe there. Never returns.
[[noreturn]] void BecomeChild(char* const* arguments, char* const* environment,
                              const char* directory, int out, int err) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int in = open("/dev/null", O_RDONLY);
  if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
  if (directory != nullptr && chdir(directory) != 0) _exit(126);
  execve(arguments[0], arguments, environment);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const Options& options) {
  const std::vector<std::string> environment = Environment(options.environment);
  const std::vector<char*> argument_pointers = Pointers(options.arguments);
  const std::vector<char*> environment_pointers = Pointers(environment);
  const char* directory = options.directory.empty() ? nullptr : options.directory.c_str();
  const int out = OpenForAppending(options.stdout_path);
  const int err = OpenForAppending(options.stderr_path);
  const auto closer = absl::MakeCleanup([&] {
    if (out >= 0) close(out);
    if (err >= 0) close(err);
  });
  if (out < 0 || err < 0) return absl::ErrnoToStatus(errno, "cannot open the child's output");
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  if (pid == 0) {
    BecomeChild(argument_pointers.data(), environment_pointers.data(), directory, out, err);
  }
  // Debian 12's <sys/pidfd.h> does not declare pidfd_open as a C function.
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pid_fd < 0) {
    const int error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return absl::ErrnoToStatus(error, "cannot watch the child");
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, pid_fd));
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  Wait(absl::InfiniteFuture()).IgnoreError();
  close(pid_fd_);
}

void ChildProcess::Signal(int number) {
  if (!reaped_) kill(pid_, number);
}

absl::StatusOr<int> ChildProcess::Wait(absl::Time deadline) {
  while (!reaped_) {
    const absl::Duration left =
        std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Seconds(60));
    pollfd ended{pid_fd_, POLLIN, 0};
    const int ready = poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
    if (ready == 0 && absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " still runs"));
    }
    if (ready <= 0) continue;
    int status = 0;
    if (waitpid(pid_, &status, 0) != pid_) return absl::ErrnoToStatus(errno, "cannot reap");
    reaped_ = true;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return exit_code_;
}

bool ChildProcess::running() { return !Wait(absl::InfinitePast()).ok(); }

}  // namespace headrace
