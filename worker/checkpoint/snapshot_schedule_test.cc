#include "worker/checkpoint/snapshot_schedule.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

const SnapshotProgress kIdle;
const SnapshotProgress kReplicating = {.idle = false};
const SnapshotProgress kCheckpointing = {.idle = false, .takes_checkpoint = false};

class SnapshotScheduleTest : public ::testing::Test {
 protected:
  SnapshotScheduleTest() {
    spec_.set_every_minutes(0);
    spec_.set_replicate(v1::REPLICATION_OFF);
  }

  // What is due after steps 1 to `steps`, a letter each: c, r, l (which is a checkpoint too) or -.
  std::string Run(int64_t steps, absl::Duration step_time = absl::ZeroDuration(),
                  const SnapshotProgress& progress = kIdle) {
    SnapshotSchedule schedule(spec_, steps, &clock_);
    std::string letters;
    for (int64_t step = 1; step <= steps; ++step) {
      clock_.Advance(step_time);
      letters += Letter(schedule.After(step, progress).verdict);
    }
    return letters;
  }

  static char Letter(const Verdict& verdict) {
    EXPECT_EQ(verdict.fate, Fate::kApply);
    EXPECT_FALSE(verdict.checkpoint && verdict.replicate);
    if (verdict.leave) return verdict.checkpoint ? 'l' : '?';
    return verdict.checkpoint ? 'c' : verdict.replicate ? 'r' : '-';
  }

  FakeClock clock_{absl::FromUnixSeconds(1'000'000)};
  v1::CheckpointSpec spec_;
};

TEST_F(SnapshotScheduleTest, NothingIsDueThatIsNotWanted) { EXPECT_EQ(Run(5), "-----"); }

TEST_F(SnapshotScheduleTest, ByStepsMeansEachMultipleTheLastStepToo) {
  spec_.set_every_steps(3);
  EXPECT_EQ(Run(9), "--c--c--c");
}

TEST_F(SnapshotScheduleTest, ByTimeCountsFromTheLastCheckpoint) {
  spec_.set_every_minutes(1);
  EXPECT_EQ(Run(8, absl::Seconds(25)), "--c--c--");
  spec_.set_every_steps(4);
  EXPECT_EQ(Run(8, absl::Seconds(25)), "--cc--cc");
}

TEST_F(SnapshotScheduleTest, TenMinutesUnlessSaidOtherwise) {
  spec_.clear_every_minutes();
  EXPECT_EQ(Run(7, absl::Minutes(3.5)), "--c--c-");
}

TEST_F(SnapshotScheduleTest, SnapshotsForANeighbourComeAboutEveryTenSeconds) {
  spec_.set_replicate(v1::REPLICATION_AUTO);
  EXPECT_EQ(Run(7, absl::Seconds(4)), "--r--r-");
  spec_.clear_replicate();
  EXPECT_EQ(Run(7, absl::Seconds(4)), "--r--r-") << "by default";
  EXPECT_EQ(Run(7, absl::Seconds(4), kReplicating), "-------") << "one at a time";
  spec_.set_every_steps(2);
  EXPECT_EQ(Run(7, absl::Seconds(4)), "-c-c-c-") << "a checkpoint is a snapshot too";
}

TEST_F(SnapshotScheduleTest, SlowCopiesMakeThemRarer) {
  spec_.set_replicate(v1::REPLICATION_NEIGHBOUR);
  EXPECT_EQ(Run(7, absl::Seconds(10), {.copy = absl::Milliseconds(500)}), "--r--r-");
  EXPECT_EQ(Run(7, absl::Seconds(10), {.write = absl::Seconds(1)}), "-r-r-r-");
}

TEST_F(SnapshotScheduleTest, SnapshotsForANeighbourByStepsNeverAfterTheLast) {
  spec_.set_replicate_every(2);
  spec_.set_replicate(v1::REPLICATION_NEIGHBOUR);
  EXPECT_EQ(Run(6), "-r-r--");
}

TEST_F(SnapshotScheduleTest, ACheckpointAskedForComesAtOnceAndOnce) {
  SnapshotSchedule schedule(spec_, 10, &clock_);
  schedule.Ask(/*checkpoint=*/true, /*leave=*/false);
  EXPECT_EQ(Letter(schedule.After(1, kReplicating).verdict), 'c');
  EXPECT_EQ(Letter(schedule.After(2, kIdle).verdict), '-');
}

TEST_F(SnapshotScheduleTest, ACheckpointAskedForWaitsForTheOneBefore) {
  SnapshotSchedule schedule(spec_, 10, &clock_);
  schedule.Ask(true, false);
  EXPECT_EQ(Letter(schedule.After(1, kCheckpointing).verdict), '-');
  EXPECT_EQ(Letter(schedule.After(2, kIdle).verdict), 'c');
}

TEST_F(SnapshotScheduleTest, OneThatIsDueByItsStepIsLeftOutAloud) {
  spec_.set_every_steps(2);
  SnapshotSchedule schedule(spec_, 10, &clock_);
  const SnapshotSchedule::Due due = schedule.After(2, kCheckpointing);
  EXPECT_EQ(Letter(due.verdict), '-');
  EXPECT_THAT(due.left_out, HasSubstr("the checkpoint after step 2 is left out"));
  EXPECT_EQ(Letter(schedule.After(3, kIdle).verdict), '-');
  EXPECT_EQ(Letter(schedule.After(4, kIdle).verdict), 'c');
}

TEST_F(SnapshotScheduleTest, LeavingWaitsForNothingAndIsACheckpoint) {
  SnapshotSchedule schedule(spec_, 10, &clock_);
  schedule.Ask(false, true);
  EXPECT_EQ(Letter(schedule.After(1, kCheckpointing).verdict), 'l');
}

TEST_F(SnapshotScheduleTest, NobodyLeavesAfterTheLastStep) {
  SnapshotSchedule schedule(spec_, 3, &clock_);
  schedule.Ask(false, true);
  EXPECT_EQ(Letter(schedule.After(3, kIdle).verdict), 'c') << "they end anyhow";
}

}  // namespace
}  // namespace headrace
