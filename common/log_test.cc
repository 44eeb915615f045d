#include "common/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

using ::testing::MatchesRegex;

std::string Logged(void (*log)(std::string_view), std::string_view message) {
  testing::internal::CaptureStderr();
  log(message);
  return testing::internal::GetCapturedStderr();
}

TEST(LogTest, ALineSaysWhenHowBadAndWho) {
  SetLogSource("worker w0");
  const std::string time =
      "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9].[0-9][0-9][0-9]"
      "Z";
  EXPECT_THAT(Logged(LogInfo, "ready"), MatchesRegex(time + " I worker w0: ready\n"));
  EXPECT_THAT(Logged(LogWarning, "slow"), MatchesRegex(time + " W worker w0: slow\n"));
  EXPECT_THAT(Logged(LogError, "lost"), MatchesRegex(time + " E worker w0: lost\n"));
}

TEST(LogTest, AMessageCannotForgeALine) {
  const std::string line = Logged(LogInfo, "a\nb\rc");
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_NE(line.find("a\\nb\\rc"), std::string::npos);
}

}  // namespace
}  // namespace headrace
