// What the coordinator and the worker say to a command line that is wrong, and of themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "tests/cluster/child_process.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int exit_code = -1;
  std::string out, err;
};

class DaemonFlagsTest : public ::testing::Test {
 protected:
  Ended RunDaemon(const std::string& program, std::vector<std::string> arguments) {
    ChildProcess::Options options;
    arguments.insert(arguments.begin(), absl::StrCat(HEADRACE_BIN_DIR, "/", program));
    options.arguments = std::move(arguments);
    options.stdout_path = dir_ / "out";
    options.stderr_path = dir_ / "err";
    options.directory = dir_.path();
    auto child = ChildProcess::Start(options);
    EXPECT_TRUE(child.ok()) << child.status();
    Ended run;
    run.exit_code = (*child)->Wait(absl::Now() + absl::Seconds(30)).value_or(-1);
    run.out = ReadFile(dir_ / "out").value_or("");
    run.err = ReadFile(dir_ / "err").value_or("");
    return run;
  }

  const TempDir dir_;
};

TEST_F(DaemonFlagsTest, AWrongValueIsUsageAndNamesTheFlag) {
  const struct {
    const char* program;
    std::vector<std::string> arguments;
    const char* says;
  } kCases[] = {
      {"headrace-worker", {"--coordinator", "nowhere"}, "--coordinator: "},
      {"headrace-worker", {"--coordinator", "h:1", "--metrics", "127.0.0.1:99999"}, "--metrics: "},
      {"headrace-worker", {"--coordinator", "h:1", "--metrics", "unix:/s"}, "--metrics: "},
      {"headrace-worker", {"--coordinator", "h:1", "--memory-limit", "much"}, "--memory-limit: "},
      {"headrace-worker", {"--coordinator", "h:1", "--drain-time", "soon"}, "--drain-time: "},
      {"headrace-worker", {"--coordinator", "h:1", "--drain-time", "-3s"}, "--drain-time: "},
      {"headrace-coordinator", {"--data-dir", "d", "--metrics", "127.0.0.1:x"}, "--metrics: "},
      {"headrace-coordinator", {"--data-dir", "d", "--listen", "7070"}, "--listen: "},
      {"headrace-coordinator", {}, "--data-dir is required"},
  };
  for (const auto& c : kCases) {
    const Ended run = RunDaemon(c.program, c.arguments);
    EXPECT_EQ(run.exit_code, 2) << c.program << " " << c.says << ": " << run.err;
    EXPECT_THAT(run.err, HasSubstr(c.says));
  }
}

TEST_F(DaemonFlagsTest, AHostThatIsNotKnownIsNotAnAddressInUse) {
  const std::vector<std::string> listen = {"--listen", "no-such-host.invalid:0"};
  std::vector<std::string> coordinator = {"--data-dir", "d"};
  coordinator.insert(coordinator.end(), listen.begin(), listen.end());
  Ended run = RunDaemon("headrace-coordinator", coordinator);
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr("no host 'no-such-host.invalid' is known"));
  std::vector<std::string> worker = {"--coordinator", "127.0.0.1:1", "--data-dir", "w"};
  worker.insert(worker.end(), listen.begin(), listen.end());
  run = RunDaemon("headrace-worker", worker);
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr("no host 'no-such-host.invalid' is known"));
}

TEST_F(DaemonFlagsTest, HelpNamesWhatAFlagTakesAndVersionIsKnown) {
  for (const char* program : {"headrace-coordinator", "headrace-worker"}) {
    const Ended help = RunDaemon(program, {"--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("--metrics HOST:PORT"));
    EXPECT_THAT(help.out, Not(HasSubstr("TEXT")));
    const Ended version = RunDaemon(program, {"--version"});
    EXPECT_EQ(version.exit_code, 0);
    EXPECT_THAT(version.out, HasSubstr(absl::StrCat(program, " ")));
  }
}

}  // namespace
}  // namespace headrace
