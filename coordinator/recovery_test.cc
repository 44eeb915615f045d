#include "coordinator/recovery.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

Breakdown OwnFaultOf(const std::string& worker, int64_t stage, int64_t step,
                     bool got_somewhere = false) {
  const std::string verdict = "worker " + worker + " (stage " + std::to_string(stage) +
                              "), step 8, micro-batch 0, forward: arena is full";
  return {{FaultKind::kOwn, worker, stage, verdict}, false, got_somewhere, step};
}

Breakdown BrokenBy(FaultKind kind, bool got_somewhere = false) {
  return {{kind, "w1", 1, "worker w1 (stage 1): trouble"}, false, got_somewhere, 7};
}

TEST(RecoveryTest, GoesOnAndAvoidsWhoHadAFaultOfItsOwn) {
  Recovery recovery(v1::SWITCH_AUTO);
  EXPECT_EQ(recovery.Judge(BrokenBy(FaultKind::kLost)), "");
  EXPECT_TRUE(recovery.avoided().empty());
  EXPECT_EQ(recovery.Judge(OwnFaultOf("w1", 1, 7)), "");
  EXPECT_EQ(recovery.avoided(), std::set<std::string>{"w1"});
}

TEST(RecoveryTest, FailsForTheSameOwnFaultTwiceAtOneStep) {
  Recovery recovery(v1::SWITCH_AUTO);
  EXPECT_EQ(recovery.Judge(OwnFaultOf("w1", 1, 7, true)), "");
  EXPECT_EQ(recovery.Judge(OwnFaultOf("w2", 0, 7)),
            "worker w2 (stage 0), step 8, micro-batch 0, forward: arena is full (the same twice in "
            "a row)");
}

TEST(RecoveryTest, TakesTheSameFaultAtAnotherStepForAnother) {
  Recovery recovery(v1::SWITCH_AUTO);
  for (int64_t step = 1; step <= 20; ++step) {
    EXPECT_EQ(recovery.Judge(OwnFaultOf("w1", 1, step, true)), "") << step;
  }
}

TEST(RecoveryTest, FailsAfterThreeGenerationsThatGotNowhere) {
  Recovery recovery(v1::SWITCH_AUTO);
  EXPECT_EQ(recovery.Judge(BrokenBy(FaultKind::kAccusation)), "");
  EXPECT_EQ(recovery.Judge(BrokenBy(FaultKind::kAccusation)), "");
  EXPECT_EQ(recovery.Judge(BrokenBy(FaultKind::kAccusation)),
            "worker w1 (stage 1): trouble (3 generations in a row got nowhere)");
  Recovery other(v1::SWITCH_AUTO);
  EXPECT_EQ(other.Judge(BrokenBy(FaultKind::kAccusation)), "");
  EXPECT_EQ(other.Judge(BrokenBy(FaultKind::kAccusation)), "");
  EXPECT_EQ(other.Judge(BrokenBy(FaultKind::kAccusation, true)), "") << "it got somewhere";
  EXPECT_EQ(other.Judge(BrokenBy(FaultKind::kAccusation)), "");
}

TEST(RecoveryTest, NeverFailsByLostWorkersButPausesLonger) {
  Recovery recovery(v1::SWITCH_AUTO);
  const std::vector<int> pauses_s = {0, 0, 1, 2, 4, 8, 16, 32, 60, 60};
  for (const int pause_s : pauses_s) {
    EXPECT_EQ(recovery.Judge(BrokenBy(FaultKind::kLost)), "");
    EXPECT_EQ(recovery.Pause(), absl::Seconds(pause_s));
  }
  EXPECT_EQ(recovery.Judge(BrokenBy(FaultKind::kLost, true)), "");
  EXPECT_EQ(recovery.Pause(), absl::ZeroDuration());
}

TEST(RecoveryTest, ABadSliceIsNobodysFault) {
  Recovery recovery(v1::SWITCH_AUTO);
  Breakdown breakdown = OwnFaultOf("w1", 1, 7);
  breakdown.bad_slice = true;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(recovery.Judge(breakdown), "");
  EXPECT_TRUE(recovery.avoided().empty());
}

TEST(RecoveryTest, SwitchedOffItFails) {
  Recovery recovery(v1::SWITCH_OFF);
  EXPECT_EQ(recovery.Judge(BrokenBy(FaultKind::kLost)), "worker w1 (stage 1): trouble");
}

}  // namespace
}  // namespace headrace
