// Each planted error is caught where planted_bugs.h says, and by the sound kernels nobody is
// alarmed.
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace::emulation {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  std::string text;
  bool clean = false;
};

Outcome RunBug(const std::string& flavour, const std::string& arguments) {
  const std::string command =
      std::string(HEADRACE_EMULATION_DIR) + "/planted_bugs_" + flavour + " " + arguments + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char chunk[4096];
  while (const size_t size = std::fread(chunk, 1, sizeof(chunk), pipe)) {
    outcome.text.append(chunk, size);
  }
  const int status = pclose(pipe);
  outcome.clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return outcome;
}

struct Row {
  const char *bug, *plain, *asan, *tsan;  // what is reported; null: not caught there
};

constexpr const char* kRace = "WARNING: ThreadSanitizer: data race";
constexpr const char* kHalfAWarp = "deadlock: thread (0,0,0) is at __shfl_xor_sync";

constexpr Row kTable[] = {
    {"no-barrier", "wrong values", "wrong values", kRace},
    {"no-barrier-before-reuse", nullptr, nullptr, kRace},
    {"no-warp-barrier", nullptr, nullptr, kRace},
    {"shared-out-of-bounds", nullptr, "planted_bugs.cu", nullptr},
    {"global-out-of-bounds", nullptr, "planted_bugs.cu", nullptr},
    {"divergent-barrier", "deadlock: thread", "deadlock: thread", "deadlock: thread"},
    {"shuffle-in-half-a-warp", kHalfAWarp, kHalfAWarp, kHalfAWarp},
};

class PlantedBugs : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Flavours, PlantedBugs, ::testing::Values("plain", "asan", "tsan"));

TEST_P(PlantedBugs, AreCaughtWhereTheTableSays) {
  const std::string flavour = GetParam();
  for (const Row& row : kTable) {
    const char* report = flavour == "plain" ? row.plain : flavour == "asan" ? row.asan : row.tsan;
    if (report == nullptr) continue;
    const Outcome outcome = RunBug(flavour, row.bug);
    EXPECT_FALSE(outcome.clean) << row.bug;
    EXPECT_THAT(outcome.text, HasSubstr(report)) << row.bug;
  }
}

TEST_P(PlantedBugs, OfNoneThereIsNoAlarmInAnyOrder) {
  for (const char* order : {"forward", "reverse", "random"}) {
    const Outcome outcome = RunBug(GetParam(), std::string("none ") + order);
    EXPECT_TRUE(outcome.clean) << order << ": " << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("ran to the end"));
  }
}

TEST(PlantedBugsReport, NamesTheLineOfTheRaceAndBothSitesOfADeadlock) {
  EXPECT_THAT(RunBug("tsan", "no-barrier").text, HasSubstr("planted_bugs.cu:"));
  const std::string text = RunBug("plain", "divergent-barrier").text;
  EXPECT_THAT(text, HasSubstr("has returned"));
  EXPECT_THAT(text, HasSubstr("__syncthreads"));
  EXPECT_THAT(text, HasSubstr("planted_bugs.cu:"));
  EXPECT_THAT(RunBug("asan", "shared-out-of-bounds").text, HasSubstr("out of bounds"));
}

}  // namespace
}  // namespace headrace::emulation
