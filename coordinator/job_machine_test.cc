// Runs every script in job_machine_scripts/ and compares what the machine commands with what the
// script says. HEADRACE_REWRITE=1 writes the scripts anew instead: read the diff.
#include "coordinator/job_machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/file.h"
#include "coordinator/job_machine_script.h"

namespace headrace {
namespace {

constexpr char kFolder[] = "coordinator/job_machine_scripts";

std::vector<std::string> Scripts() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(JobMachineTest, CommandsWhatEachScriptSays) {
  const std::vector<std::string> paths = Scripts();
  ASSERT_GE(paths.size(), 8u) << "run from the repository's root";
  for (const std::string& path : paths) {
    const absl::StatusOr<std::string> script = ReadFile(path);
    ASSERT_TRUE(script.ok()) << script.status();
    const std::string transcript = MachineScript().Run(*script);
    if (std::getenv("HEADRACE_REWRITE") != nullptr) {
      std::ofstream(path) << transcript;
    } else {
      EXPECT_EQ(transcript, *script) << path;
    }
  }
}

TEST(JobMachineTest, RefusesASpecThatIsWrong) {
  JobMachine machine(PlanFunctions{}, 0);
  Commands out;
  machine.Handle(JobSubmitted{7, v1::JobSpec(), v1::Dataset(), v1::JobOptions()}, absl::Now(),
                 &out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(std::get<Reply>(out[0]).request, 7);
  EXPECT_EQ(std::get<Reply>(out[0]).status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headrace
