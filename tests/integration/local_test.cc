// `headrace run`, `up` and `down`: clusters the client starts by itself leave nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "tests/cluster/child_process.h"
#include "tests/cluster/test_cluster.h"
#include "tests/cluster/tiny_job.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class LocalTest : public testing::Test {
 protected:
  LocalTest() {
    EXPECT_TRUE(WriteFileAtomically(dir_ / "tiny.txt", TinyText()).ok());
    EXPECT_TRUE(WriteFileAtomically(dir_ / "tiny.yaml", JobFileText(TinyJob())).ok());
    TinyJob endless;
    endless.steps = 1'000'000;
    EXPECT_TRUE(WriteFileAtomically(dir_ / "endless.yaml", JobFileText(endless)).ok());
  }
  ~LocalTest() override {
    if (HasFailure()) std::cerr << Output("err");
    for (const pid_t pid : Processes()) kill(pid, SIGKILL);
  }

  std::unique_ptr<ChildProcess> Start(std::vector<std::string> arguments) {
    ChildProcess::Options options;
    options.arguments = {absl::StrCat(HEADRACE_BIN_DIR, "/headrace")};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    options.environment = {"HEADRACE_COORDINATOR=", absl::StrCat("XDG_STATE_HOME=", dir_ / "state"),
                           absl::StrCat("TMPDIR=", dir_.path())};
    options.stdout_path = dir_ / "out";
    options.stderr_path = dir_ / "err";
    options.directory = dir_.path();
    fs::remove(dir_ / "out");
    fs::remove(dir_ / "err");
    auto child = ChildProcess::Start(options);
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }
  int Run(std::vector<std::string> arguments, absl::Duration time = absl::Seconds(60)) {
    return Start(std::move(arguments))->Wait(absl::Now() + time).value_or(-1);
  }
  std::string Output(const std::string& name) { return ReadFile(dir_ / name).value_or(""); }

  // Processes that have this test's folder, which no other has, on their command line.
  std::vector<pid_t> Processes() {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      pid_t pid = 0;
      if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
      const std::string command = ReadFile((entry.path() / "cmdline").string()).value_or("");
      if (command.find(dir_.path()) != std::string::npos) found.push_back(pid);
    }
    return found;
  }
  size_t NumProcesses() { return Processes().size(); }
  template <typename Condition>
  static bool Eventually(Condition condition, absl::Duration time = absl::Seconds(10)) {
    const absl::Time deadline = absl::Now() + time;
    while (!condition()) {
      if (absl::Now() >= deadline) return false;
      absl::SleepFor(kLook);
    }
    return true;
  }

  TempDir dir_;
};

TEST_F(LocalTest, RunTrainsAndLeavesNoProcessBehind) {
  EXPECT_EQ(Run({"run", "tiny.yaml", "--workers", "2", "-o", "json"}), 0);
  const auto job = nlohmann::json::parse(Output("out"), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(job.is_object()) << Output("out");
  EXPECT_EQ(job.at("state"), "done");
  EXPECT_EQ(job.at("plan").at("stages"), 2);
  EXPECT_EQ(NumProcesses(), 0u);
}

// The process of this run's whose command line holds `words`; 0: none.
pid_t FindProcess(const std::vector<pid_t>& processes, const std::string& words) {
  for (const pid_t pid : processes) {
    std::string command = ReadFile(absl::StrCat("/proc/", pid, "/cmdline")).value_or("");
    std::replace(command.begin(), command.end(), '\0', ' ');
    if (command.find(words) != std::string::npos) return pid;
  }
  return 0;
}

// What ends is started again: a worker costs a recovery, the coordinator nothing at all, and the
// weights are those of a run that nothing happened to.
TEST_F(LocalTest, ARunOutlivesItsOwnWorkersAndCoordinator) {
  TinyJob job;
  job.steps = 2000;
  job.restart = true;
  job.checkpoint = "  every_steps: 50\n";
  ASSERT_TRUE(WriteFileAtomically(dir_ / "long.yaml", JobFileText(job)).ok());
  const auto weights = [&] {
    const std::string out = Output("out");
    const size_t at = out.find(", weights ");
    return at == std::string::npos ? "none: " + out : out.substr(at);
  };
  ASSERT_EQ(Run({"run", "long.yaml", "--workers", "2"}), 0);
  const std::string undisturbed = weights();
  EXPECT_THAT(undisturbed, Not(HasSubstr("none")));
  auto client = Start({"run", "long.yaml", "--workers", "2"});
  const auto says = [&](const char* text) {
    return Eventually([&] { return Output("err").find(text) != std::string::npos; },
                      absl::Seconds(30));
  };
  ASSERT_TRUE(says("step "));
  const pid_t worker = FindProcess(Processes(), "--name w1");
  const pid_t coordinator = FindProcess(Processes(), "headrace-coordinator");
  ASSERT_GT(worker, 0);
  ASSERT_GT(coordinator, 0);
  kill(worker, SIGKILL);
  ASSERT_TRUE(says(" recovering"));
  kill(coordinator, SIGKILL);
  ASSERT_TRUE(says("answers again"));
  EXPECT_TRUE(Eventually([&] {
    const pid_t again = FindProcess(Processes(), "--name w1");
    return again != 0 && again != worker;
  }));
  EXPECT_EQ(client->Wait(absl::Now() + absl::Seconds(60)).value_or(-1), 0);
  EXPECT_THAT(Output("out"), HasSubstr("step 2000/2000"));
  EXPECT_EQ(weights(), undisturbed);
  EXPECT_EQ(NumProcesses(), 0u);
}

TEST_F(LocalTest, CtrlCEndsARunInOrder) {
  auto client = Start({"run", "endless.yaml", "--workers", "2"});
  ASSERT_TRUE(Eventually([&] { return Output("err").find("step ") != std::string::npos; },
                         absl::Seconds(30)));
  EXPECT_GE(NumProcesses(), 3u);
  client->Signal(SIGINT);
  EXPECT_EQ(client->Wait(absl::Now() + absl::Seconds(10)).value_or(-1), 130);
  EXPECT_EQ(NumProcesses(), 0u);
}

TEST_F(LocalTest, TheChildrenOfAKilledRunDieWithIt) {
  auto client = Start({"run", "endless.yaml", "--workers", "2"});
  ASSERT_TRUE(Eventually([&] { return NumProcesses() >= 3; }, absl::Seconds(30)));
  client->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return NumProcesses() == 0; }));
}

TEST_F(LocalTest, ARunThatTakesTooLongIsCancelledWith124) {
  EXPECT_EQ(Run({"run", "endless.yaml", "--workers", "2", "--timeout", "3s"}), 124);
  EXPECT_EQ(NumProcesses(), 0u);
}

TEST_F(LocalTest, AClusterThatIsUpServesUntilItIsDown) {
  ASSERT_EQ(Run({"up", "--workers", "2"}), 0);
  EXPECT_GE(NumProcesses(), 3u);
  EXPECT_EQ(Run({"submit", "--watch", "tiny.yaml"}), 0);
  EXPECT_EQ(Run({"list"}), 0);
  EXPECT_THAT(Output("out"), HasSubstr("tiny"));
  EXPECT_NE(Run({"up", "--workers", "2"}), 0) << "a second cluster in the same place";
  EXPECT_EQ(Run({"down"}), 0);
  EXPECT_TRUE(Eventually([&] { return NumProcesses() == 0; }));
  EXPECT_EQ(Run({"list"}), 4);
}

TEST_F(LocalTest, UpNamesTheCommandThatTakesItDownAgain) {
  ASSERT_EQ(Run({"up", "--workers", "1"}), 0);
  EXPECT_THAT(Output("err"), HasSubstr("stop them with `headrace down`"));
  EXPECT_EQ(Run({"down"}), 0);
  ASSERT_EQ(Run({"up", "--workers", "1", "--state-dir", "my state"}), 0);
  EXPECT_THAT(Output("err"), HasSubstr("`headrace down --state-dir 'my state'`"));
  EXPECT_EQ(Run({"down", "--state-dir", "my state"}), 0);
  EXPECT_TRUE(Eventually([&] { return NumProcesses() == 0; }));
}

// Ctrl-C in a watch leaves the job alone.
TEST_F(LocalTest, CtrlCInAWatchLeavesTheJobRunning) {
  ASSERT_EQ(Run({"up", "--workers", "2"}), 0);
  auto watch = Start({"submit", "--watch", "endless.yaml"});
  ASSERT_TRUE(Eventually([&] { return Output("err").find("step ") != std::string::npos; },
                         absl::Seconds(30)));
  watch->Signal(SIGINT);
  EXPECT_EQ(watch->Wait(absl::Now() + absl::Seconds(10)).value_or(-1), 130);
  EXPECT_EQ(Run({"list", "-o", "json"}), 0);
  EXPECT_THAT(Output("out"), HasSubstr("running"));
  EXPECT_EQ(Run({"down"}), 0);
  EXPECT_TRUE(Eventually([&] { return NumProcesses() == 0; }));
}

}  // namespace
}  // namespace headrace
