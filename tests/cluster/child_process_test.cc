#include "tests/cluster/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "absl/time/clock.h"
#include "common/file.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

class ChildProcessTest : public testing::Test {
 protected:
  std::unique_ptr<ChildProcess> Shell(const std::string& script) {
    ChildProcess::Options options;
    options.arguments = {"/bin/sh", "-c", script};
    options.environment = {"WORD=told"};
    options.stdout_path = dir_ / "out";
    options.stderr_path = dir_ / "err";
    options.directory = dir_.path();
    auto child = ChildProcess::Start(options);
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }
  static absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

  TempDir dir_;
};

TEST_F(ChildProcessTest, TellsOutputAndExitCode) {
  const auto child = Shell("echo $WORD; pwd; echo bad >&2; exit 7");
  EXPECT_EQ(*child->Wait(Soon()), 7);
  EXPECT_EQ(*child->Wait(Soon()), 7);
  EXPECT_EQ(*ReadFile(dir_ / "out"), "told\n" + dir_.path() + "\n");
  EXPECT_EQ(*ReadFile(dir_ / "err"), "bad\n");
}

TEST_F(ChildProcessTest, ASignalShowsInTheCode) {
  const auto child = Shell("exec sleep 1000");
  EXPECT_TRUE(child->running());
  EXPECT_EQ(child->Wait(absl::Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
  child->Signal(SIGTERM);
  EXPECT_EQ(*child->Wait(Soon()), 128 + SIGTERM);
  EXPECT_FALSE(child->running());
}

TEST_F(ChildProcessTest, AStoppedOneIsKilledByTheDestructor) {
  auto child = Shell("exec sleep 1000");
  const pid_t pid = child->pid();
  child->Signal(SIGSTOP);
  child.reset();
  EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(ChildProcessTest, AProgramThatIsNotThereEndsWith127) {
  ChildProcess::Options options;
  options.arguments = {dir_ / "none"};
  options.stdout_path = options.stderr_path = dir_ / "out";
  EXPECT_EQ(*(*ChildProcess::Start(options))->Wait(Soon()), 127);
}

}  // namespace
}  // namespace headrace
