#include "common/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace headrace {
namespace {

TEST(ProcessTest, WaitsForASignalThatWouldElseEndIt) {
  for (const int number : {SIGTERM, SIGINT}) {
    const pid_t child = fork();
    if (child == 0) {
      BlockSignals();
      std::thread([number] { kill(getpid(), number); }).join();
      kill(getpid(), SIGPIPE);  // ignored
      _exit(WaitForSignal() == number ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "signal " << number;
  }
}

// The test forks a parent that forks a child; both hold the writing end of a pipe, so the reading
// end sees the end only when both are gone.
TEST(ProcessTest, AChildDiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    close(ends[0]);
    if (fork() == 0) {
      BlockSignals();
      DieWithParent();
      const char ready = 'r';
      if (write(ends[1], &ready, 1) != 1) _exit(1);
      while (true) pause();
    }
    while (true) pause();
  }
  close(ends[1]);
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  kill(parent, SIGKILL);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  pollfd waiting{ends[0], POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, /*timeout=*/10'000), 1) << "the child lives on";
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
}

TEST(ProcessTest, AChildWhoseParentIsGoneAlreadyEndsAtOnce) {
  const pid_t child = fork();
  if (child == 0) {
    setenv(kParentPidVariable, "1234567890", 1);
    DieWithParent();
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

TEST(ProcessTest, TunedMallocStillAllocates) {
  TuneMalloc();
  std::string large(64 << 20, 'x');
  EXPECT_EQ(large.back(), 'x');
}

}  // namespace
}  // namespace headrace
