#include "common/fault_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/time/clock.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

std::vector<PlannedFault> Faults(const std::string& text) {
  auto faults = ParseFaults(text);
  EXPECT_TRUE(faults.ok()) << faults.status();
  return *std::move(faults);
}

TEST(FaultPoint, FailsAtTheCountedPassOnly) {
  FaultPlan plan(Faults("snapshot:error:2"));
  EXPECT_TRUE(plan.Pass("snapshot").ok());
  EXPECT_TRUE(plan.Pass("commit").ok());
  EXPECT_THAT(plan.Pass("snapshot").ToString(), HasSubstr("INTERNAL: fault point snapshot"));
  EXPECT_TRUE(plan.Pass("snapshot").ok());
}

TEST(FaultPoint, FailsFromTheCountedPassOn) {
  FaultPlan plan(Faults("load:full:2+,assign:error"));
  EXPECT_TRUE(plan.Pass("load").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(plan.Pass("load")));
  EXPECT_TRUE(absl::IsResourceExhausted(plan.Pass("load")));
  EXPECT_TRUE(absl::IsInternal(plan.Pass("assign")));
}

TEST(FaultPoint, Delays) {
  FaultPlan plan(Faults("reduce:delay=30ms"));
  const absl::Time began = absl::Now();
  EXPECT_TRUE(plan.Pass("reduce").ok());
  EXPECT_GE(absl::Now() - began, absl::Milliseconds(30));
}

TEST(FaultPointDeathTest, KillsAndAborts) {
  EXPECT_EXIT(FaultPlan(Faults("connect:kill")).Pass("connect").IgnoreError(),
              testing::KilledBySignal(SIGKILL), "fault point connect");
  EXPECT_EXIT(FaultPlan(Faults("connect:abort")).Pass("connect").IgnoreError(),
              testing::KilledBySignal(SIGABRT), "fault point connect");
}

struct Refused {
  const char* text;
  const char* says;
};

TEST(FaultPoint, RefusesWhatItDoesNotKnow) {
  const Refused cases[] = {
      {"lunch:kill", "point \"lunch\"; expected assign, load, connect"},
      {"load:explode", "action \"explode\"; expected kill"},
      {"load:delay=soon", "delay \"soon\""},
      {"load:delay=-1s", "delay \"-1s\""},
      {"load:kill:0", "count \"0\""},
      {"load:kill:x", "count \"x\""},
      {"load:kill:1+,", "fault \"\""},
      {"load", "expected POINT:ACTION"},
      {"load:kill:1:1", "expected POINT:ACTION"},
  };
  for (const Refused& refused : cases) {
    const auto faults = ParseFaults(refused.text);
    EXPECT_TRUE(absl::IsInvalidArgument(faults.status())) << refused.text;
    EXPECT_THAT(std::string(faults.status().message()), HasSubstr(refused.says)) << refused.text;
  }
}

}  // namespace
}  // namespace headrace
