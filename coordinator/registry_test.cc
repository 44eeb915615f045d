#include "coordinator/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using ::testing::HasSubstr;

class RegistryTest : public ::testing::Test {
 protected:
  static v1::WorkerInfo Info(const std::string& name, const std::string& instance) {
    v1::WorkerInfo info;
    info.set_name(name);
    info.set_instance(instance);
    info.set_address("127.0.0.1:5000");
    return info;
  }
  absl::Status Beat(const std::string& name, const std::string& instance) {
    return registry_.Heartbeat(name, instance, "", 0).status();
  }

  // Time with its ticks, as the driver makes them.
  void Pass(absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Milliseconds(100)) {
      clock_.Advance(std::min(time, absl::Milliseconds(100)));
      for (LostWorker& worker : registry_.Expire()) lost_.push_back(std::move(worker));
    }
  }

  std::vector<LostWorker> lost_;
  FakeClock clock_{absl::FromUnixSeconds(1000)};
  Registry registry_{&clock_, absl::Seconds(2), absl::Milliseconds(500)};
};

TEST_F(RegistryTest, HeartbeatsKeepTheLease) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  for (int i = 0; i < 10; ++i) {
    Pass(absl::Milliseconds(1900));
    ASSERT_TRUE(Beat("w0", "a").ok()) << i;
  }
  EXPECT_TRUE(registry_.Expire().empty());
  ASSERT_EQ(registry_.List().size(), 1u);
  EXPECT_TRUE(registry_.List()[0].alive());
  EXPECT_EQ(registry_.NumAlive(), 1);
}

TEST_F(RegistryTest, SilenceBeyondTheLeaseLosesTheWorker) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  Pass(absl::Seconds(2));
  EXPECT_TRUE(lost_.empty());
  clock_.Advance(absl::Milliseconds(100));
  EXPECT_TRUE(registry_.List().empty());
  EXPECT_EQ(registry_.NumAlive(), 0);
  EXPECT_EQ(Beat("w0", "a").code(), absl::StatusCode::kNotFound) << "even before it is swept";
  const auto lost = registry_.Expire();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].name, "w0");
  EXPECT_EQ(lost[0].instance, "a");
  EXPECT_EQ(lost[0].reason, "no heartbeat for 2.1 s");
  EXPECT_TRUE(registry_.Register(Info("w0", "a")).ok()) << "it may come back";
}

// The coordinator was stopped and continued: whether a heartbeat or its own tick comes first then,
// nobody is lost.
TEST_F(RegistryTest, ItsOwnStallIsNobodysSilence) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  ASSERT_TRUE(registry_.Register(Info("w1", "a")).ok());
  Pass(absl::Milliseconds(1900));
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(registry_.List().size(), 2u);
  EXPECT_TRUE(registry_.Check("w1", "a").ok());
  EXPECT_TRUE(Beat("w0", "a").ok());
  EXPECT_TRUE(registry_.Expire().empty());
  // w1 has a whole lease from now on, and no more.
  Pass(absl::Seconds(2));
  EXPECT_TRUE(lost_.empty());
  Pass(absl::Milliseconds(100));
  ASSERT_EQ(lost_.size(), 2u);
  EXPECT_EQ(lost_[0].reason, "no heartbeat for 2.1 s");
}

TEST_F(RegistryTest, AWorkerThatLeavesIsGoneAtOnceAndItsNameIsFree) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  EXPECT_EQ(registry_.Leave("w0", "b").status().code(), absl::StatusCode::kNotFound);
  const auto left = registry_.Leave("w0", "a");
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->reason, "its process was told to end");
  EXPECT_TRUE(registry_.List().empty());
  EXPECT_EQ(Beat("w0", "a").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(registry_.Register(Info("w0", "b"))->empty());
}

TEST_F(RegistryTest, RefusesASecondLivingWorkerOfTheName) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  const absl::Status status = registry_.Register(Info("w0", "b")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("w0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:5000"));
  EXPECT_TRUE(Beat("w0", "a").ok()) << "the first is untouched";
}

TEST_F(RegistryTest, ANewProcessReplacesADeadOneOfItsName) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  Pass(absl::Seconds(2));
  clock_.Advance(absl::Milliseconds(900));
  const auto replaced = registry_.Register(Info("w0", "b"));
  ASSERT_TRUE(replaced.ok());
  ASSERT_EQ(replaced->size(), 1u);
  EXPECT_EQ(replaced->at(0).instance, "a");
  EXPECT_EQ(Beat("w0", "a").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Beat("w0", "b").ok());
}

TEST_F(RegistryTest, TheSameProcessMayRegisterTwice) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  registry_.SetServing("w0", "a", "j1", 1);
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  EXPECT_EQ(registry_.List()[0].job_id(), "j1");
}

TEST_F(RegistryTest, KnowsNobodyAfterARestart) {
  EXPECT_EQ(Beat("w0", "a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_.Check("w0", "a").code(), absl::StatusCode::kNotFound);
}

TEST_F(RegistryTest, TellsAStageOfNoLivingGenerationToEnd) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  registry_.SetServing("w0", "a", "j1", 2);
  EXPECT_FALSE(registry_.Heartbeat("w0", "a", "j1", 2)->stop);
  EXPECT_FALSE(registry_.Heartbeat("w0", "a", "", 0)->stop) << "it serves nothing yet";
  EXPECT_TRUE(registry_.Heartbeat("w0", "a", "j1", 1)->stop);
  EXPECT_TRUE(registry_.Heartbeat("w0", "a", "j2", 2)->stop);
  registry_.SetServing("w0", "a", "", 0);
  EXPECT_TRUE(registry_.Heartbeat("w0", "a", "j1", 2)->stop);
}

// A thousand beat every 2 s, which makes 500 a second; one that serves a stage as often as ever.
TEST_F(RegistryTest, ManyIdleWorkersBeatLessOftenForALongerLease) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  EXPECT_EQ(registry_.Heartbeat("w0", "a", "", 0)->pause, absl::Milliseconds(500));
  for (int i = 1; i < 1000; ++i) {
    ASSERT_TRUE(registry_.Register(Info("w" + std::to_string(i), "a")).ok());
  }
  registry_.SetServing("w1", "a", "j1", 1);
  EXPECT_EQ(registry_.Heartbeat("w0", "a", "", 0)->pause, absl::Seconds(2));
  EXPECT_EQ(registry_.Heartbeat("w1", "a", "j1", 1)->pause, absl::Milliseconds(500));
  EXPECT_EQ(registry_.Heartbeat("w2", "a", "j9", 9)->pause, absl::Milliseconds(500)) << "it ends";
  // Three and a half seconds after that answer w0 is still known, though it serves a stage now; all
  // that had none are gone by then.
  registry_.SetServing("w0", "a", "j2", 1);
  for (int i = 0; i < 7; ++i) {
    clock_.Advance(absl::Milliseconds(500));
    registry_.Expire();
  }
  EXPECT_EQ(registry_.NumAlive(), 1);
  EXPECT_TRUE(registry_.Check("w0", "a").ok());
  clock_.Advance(absl::Milliseconds(1));
  ASSERT_EQ(registry_.Expire().size(), 1u);
}

// A stage that trained on while the coordinator was away is not told to end before somebody has
// decided about it.
TEST_F(RegistryTest, LetsAStandingStageBeUntilItIsDecided) {
  v1::StageStanding standing;
  standing.set_job_id("j1");
  standing.set_generation(3);
  for (const bool goes_on : {false, true}) {
    ASSERT_TRUE(registry_.Register(Info("w0", "a"), standing).ok());
    EXPECT_FALSE(registry_.Heartbeat("w0", "a", "j1", 3)->stop);
    EXPECT_TRUE(registry_.Heartbeat("w0", "a", "j1", 2)->stop) << "that is not what it came with";
    EXPECT_EQ(registry_.List()[0].job_id(), "") << "nobody has said that it serves";
    registry_.SetServing("w0", "a", goes_on ? "j1" : "", goes_on ? 3 : 0);
    EXPECT_EQ(registry_.Heartbeat("w0", "a", "j1", 3)->stop, !goes_on);
  }
}

TEST_F(RegistryTest, AWorkerThatRegistersAgainKeepsWhatWasSaidOfIt) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  registry_.SetServing("w0", "a", "j1", 1);
  registry_.SetCordoned("w0", "a", true);
  registry_.DropSlices("w0", "j1", 7);
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  EXPECT_TRUE(registry_.List()[0].cordoned());
  EXPECT_FALSE(registry_.Heartbeat("w0", "a", "j1", 1)->stop);
  EXPECT_EQ(registry_.Heartbeat("w0", "a", "j1", 1)->drop.size(), 1u);
}

TEST_F(RegistryTest, ShowsWhoIsCordonedAndWhoDrains) {
  v1::WorkerInfo info = Info("w0", "a");
  info.set_cordoned(true);
  ASSERT_TRUE(registry_.Register(info).ok());
  EXPECT_FALSE(registry_.List()[0].cordoned()) << "a worker does not say so itself";
  registry_.SetCordoned("w0", "b", true);
  EXPECT_FALSE(registry_.List()[0].cordoned()) << "another process";
  registry_.SetCordoned("w0", "a", true);
  EXPECT_TRUE(registry_.List()[0].cordoned());
  registry_.SetCordoned("w0", "a", false);
  EXPECT_FALSE(registry_.List()[0].cordoned());
  ASSERT_TRUE(registry_.Heartbeat("w0", "a", "", 0, /*draining=*/true).ok());
  EXPECT_TRUE(registry_.List()[0].cordoned());
}

TEST_F(RegistryTest, SaysAFewTimesWhichSlicesAreOfNoUse) {
  ASSERT_TRUE(registry_.Register(Info("w0", "a")).ok());
  registry_.DropSlices("w0", "j1", 5);
  registry_.DropSlices("w0", "j1", 7);
  registry_.DropSlices("w0", "j2", 1);
  registry_.DropSlices("w1", "j2", 1);
  for (int i = 0; i < Registry::kDropAnswers; ++i) {
    const auto answer = registry_.Heartbeat("w0", "a", "", 0);
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_EQ(answer->drop.size(), 2u) << i;
    EXPECT_EQ(answer->drop[0].job_id(), "j1");
    EXPECT_EQ(answer->drop[0].before_step(), 7);
  }
  EXPECT_TRUE(registry_.Heartbeat("w0", "a", "", 0)->drop.empty());
}

TEST_F(RegistryTest, BoundsHowManyThereAre) {
  for (int i = 0; i < Registry::kMaxWorkers; ++i) {
    ASSERT_TRUE(registry_.Register(Info("w" + std::to_string(i), "a")).ok());
  }
  EXPECT_EQ(registry_.Register(Info("one more", "a")).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace headrace
