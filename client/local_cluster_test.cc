#include "client/local_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/fake_coordinator.h"
#include "common/file.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// Shell scripts in the place of the programs: a coordinator that says it serves where the test's
// own does, and workers that note their start, and end once there is a file `die`.
class LocalClusterTest : public ::testing::Test {
 protected:
  LocalClusterTest() {
    char name[] = "/tmp/headrace-local-XXXXXX";
    dir_ = mkdtemp(name);
    fake_ = std::make_unique<FakeCoordinator>(dir_ + "/c");
    Script("headrace-coordinator",
           absl::StrCat("while [ $# -gt 0 ]; do\n  if [ $1 = --address-file ]; then printf %s ",
                        fake_->address(),
                        " > $2.new; mv $2.new $2; fi\n  shift\ndone\nexec sleep 1000\n"));
    Script("headrace-worker", absl::StrCat("echo $$ >> ", dir_, "/starts\nwhile [ ! -e ", dir_,
                                           "/die ]; do sleep 0.01; done\nexit 7\n"));
    options_.workers = 1;
    options_.memory_limit_bytes = 1 << 20;
    options_.binary_dir = dir_;
    options_.restart_pause = absl::Milliseconds(10);
  }
  ~LocalClusterTest() override {
    fake_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Script(const std::string& name, const std::string& text) {
    std::ofstream(dir_ + "/" + name) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(dir_ + "/" + name, std::filesystem::perms::owner_all);
  }
  std::string Starts() { return ReadFile(dir_ + "/starts").value_or(""); }
  int64_t NumStarts() {
    const std::string starts = Starts();
    return std::count(starts.begin(), starts.end(), '\n');
  }
  bool Eventually(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!condition() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    return condition();
  }

  std::string dir_;
  std::unique_ptr<FakeCoordinator> fake_;
  LocalClusterOptions options_;
  Interrupt interrupt_;
};

TEST_F(LocalClusterTest, StartsAgainWhatEndsAndGivesUpOnWhatEndsTooOften) {
  const auto state = StateDir::Open(dir_ + "/state");
  ASSERT_TRUE(state.ok()) << state.status();
  absl::Notification gave_up;
  absl::Status why;
  auto cluster = LocalCluster::Start(*state, options_, &interrupt_);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  (*cluster)->Keep([&](const absl::Status& status) {
    why = status;
    gave_up.Notify();
  });
  ASSERT_TRUE(Eventually([&] { return NumStarts() == 1; }));
  int64_t worker = 0;
  ASSERT_TRUE(absl::SimpleAtoi(Starts(), &worker));
  kill(static_cast<pid_t>(worker), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return NumStarts() == 2; }));
  EXPECT_FALSE(gave_up.HasBeenNotified());
  std::ofstream(dir_ + "/die") << "";
  ASSERT_TRUE(gave_up.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("given up after 5 starts in 2m: w0 ended with exit code 7"));
  EXPECT_EQ(NumStarts(), 6);
  cluster->reset();
  EXPECT_FALSE(std::filesystem::exists(state->address()));
}

}  // namespace
}  // namespace headrace
