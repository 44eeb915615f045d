#include "common/process.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/time/clock.h"

namespace headrace {
namespace {

sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  struct sigaction hangup {};  // nohup has it ignored; blocked, it would come all the same
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaddset(&set, SIGHUP);
  }
  return set;
}

}  // namespace

void TuneMalloc() {
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_ARENA_MAX, 2);
}

void BlockSignals() {
  const sigset_t set = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

int WaitForSignal() {
  const sigset_t set = EndingSignals();
  int signal_number = 0;
  while (sigwait(&set, &signal_number) == EINTR) {
  }
  return signal_number;
}

bool SignalComes(absl::Duration timeout) {
  const sigset_t set = EndingSignals();
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const timespec left = absl::ToTimespec(std::max(absl::ZeroDuration(), deadline - absl::Now()));
    if (sigtimedwait(&set, nullptr, &left) > 0) return true;
    if (errno != EINTR) return false;
  }
}

void DieWithParent() {
  const char* const told = std::getenv(kParentPidVariable);
  const long parent = told != nullptr ? std::strtol(told, nullptr, 10) : getppid();
  // SIGKILL, because SIGTERM is blocked and may find nobody waiting for it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

}  // namespace headrace
