#include "coordinator/blame.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

const std::vector<std::string> kWorkers = {"w0", "w1", "w2"};

Fault Own(int stage, const std::string& text) {
  return Fault{FaultKind::kOwn, kWorkers[stage], stage, text, ""};
}
Fault Lost(int stage, const std::string& text) {
  return Fault{FaultKind::kLost, kWorkers[stage], stage, text, ""};
}
Fault Silent(int stage, const std::string& text) {
  return Fault{FaultKind::kSilent, kWorkers[stage], stage, text, ""};
}
Fault Accuses(int stage, int blamed, const std::string& text) {
  return Fault{FaultKind::kAccusation, kWorkers[stage], stage, text, kWorkers[blamed]};
}

const std::string kWaiting =
    "worker w0 (stage 0) was at step 12, micro-batch 3, waiting for gradient from stage 1";

struct Case {
  std::string name;
  std::vector<Fault> faults;
  std::string verdict;
};

TEST(BlameTest, FindsTheRootAmongWhatWasSaid) {
  const std::vector<Case> cases = {
      {"an own fault, however late, before the accusations it caused",
       {Accuses(0, 1, kWaiting), Lost(1, "connection reset"), Own(1, "out of memory")},
       "worker w1 (stage 1): out of memory"},
      {"the earlier of two own faults",
       {Own(2, "first"), Own(0, "second")},
       "worker w2 (stage 2): first"},
      {"an own sentence that says who speaks is left alone",
       {Own(1, "worker w1 (stage 1), step 3, micro-batch 2: the loss is NaN")},
       "worker w1 (stage 1), step 3, micro-batch 2: the loss is NaN"},
      {"a lost worker, with what its accuser saw",
       {Accuses(0, 1, kWaiting), Lost(1, "connection reset")},
       "worker w1 (stage 1) lost: connection reset; " + kWaiting},
      {"the accuser of the lost one before another accuser",
       {Accuses(2, 0, "worker w2 (stage 2) waits"), Accuses(0, 1, kWaiting), Lost(1, "reset")},
       "worker w1 (stage 1) lost: reset; " + kWaiting},
      {"a lost worker that nobody accuses",
       {Lost(1, "no heartbeat for 2.1 s")},
       "worker w1 (stage 1) lost: no heartbeat for 2.1 s; the last finished step is 11"},
      {"an accused worker that does not answer is lost",
       {Accuses(0, 1, kWaiting), Silent(2, "busy"), Silent(1, "no answer for 1 s")},
       "worker w1 (stage 1) lost: no answer for 1 s; " + kWaiting},
      {"an accusation alone", {Accuses(0, 1, kWaiting), Silent(2, "busy")}, kWaiting},
      {"silence alone",
       {Silent(2, "no answer for 1 s")},
       "worker w2 (stage 2) lost: no answer for 1 s; the last finished step is 11"},
      {"the coordinator's own", {Fault{FaultKind::kOwn, "", 0, "cannot save", ""}}, "cannot save"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(FindRoot(c.faults, kWorkers, 11).verdict, c.verdict) << c.name;
  }
}

TEST(BlameTest, TellsWhoseTheRootIs) {
  const auto root = [](const std::vector<Fault>& faults) { return FindRoot(faults, kWorkers, 11); };
  EXPECT_EQ(root({Accuses(0, 1, kWaiting), Own(2, "disk full")}).worker, "w2");
  EXPECT_EQ(root({Accuses(0, 1, kWaiting), Own(2, "disk full")}).kind, FaultKind::kOwn);
  EXPECT_EQ(root({Accuses(0, 1, kWaiting), Lost(1, "reset")}).worker, "w1");
  EXPECT_EQ(root({Accuses(0, 1, kWaiting), Lost(1, "reset")}).kind, FaultKind::kLost);
  EXPECT_EQ(root({Accuses(0, 1, kWaiting), Silent(1, "busy")}).kind, FaultKind::kLost);
  EXPECT_EQ(root({Accuses(0, 1, kWaiting), Silent(2, "busy")}).kind, FaultKind::kAccusation);
  EXPECT_EQ(root({Accuses(0, 1, kWaiting)}).worker, "w1");
  EXPECT_EQ(root({Accuses(0, 1, kWaiting)}).stage, 1);
  EXPECT_EQ(root({Fault{FaultKind::kOwn, "", 0, "cannot save", ""}}).worker, "");
}

TEST(BlameTest, KnowsTheRootOnceSomeoneAdmitsOrIsLost) {
  EXPECT_FALSE(RootIsKnown({Accuses(0, 1, "x"), Silent(1, "y")}));
  EXPECT_TRUE(RootIsKnown({Accuses(0, 1, "x"), Lost(1, "y")}));
  EXPECT_TRUE(RootIsKnown({Own(0, "x")}));
}

}  // namespace
}  // namespace headrace
