#include "coordinator/state_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNoLimit = int64_t{1} << 60;

class StateBookTest : public ::testing::Test {
 protected:
  static v1::CheckpointSpec Spec(int64_t keep_last, int64_t keep_every = 0) {
    v1::CheckpointSpec spec;
    spec.set_keep_last(keep_last);
    spec.set_keep_every(keep_every);
    return spec;
  }

  // Of six layers, on workers w0, w1, ….
  void Begin(int64_t generation, int stages, bool simulated = false) {
    v1::Plan plan;
    std::vector<std::string> workers;
    stages_ = stages;
    for (int k = 0; k < stages; ++k) {
      v1::StagePlan* stage = plan.add_stage();
      stage->set_stage(k);
      stage->set_first_layer(6 * k / stages);
      stage->set_end_layer(6 * (k + 1) / stages);
      workers.push_back(absl::StrCat("w", k));
    }
    plan.set_stages(stages);
    simulated_ = simulated;
    book_.BeginGeneration(generation, plan, workers, simulated);
  }

  static std::string Hash(int64_t step, int64_t first_layer, int64_t end_layer) {
    return Sha256Hex(absl::StrCat(step, ": ", first_layer, "-", end_layer));
  }

  v1::StageSnapshot Snapshot(int64_t stage, int64_t step) const {
    v1::StageSnapshot snapshot;
    snapshot.set_step(step);
    if (simulated_) return snapshot;
    v1::WeightsSlice* slice = snapshot.mutable_slice();
    slice->set_first_layer(6 * stage / stages_);
    slice->set_end_layer(6 * (stage + 1) / stages_);
    slice->set_sha256(Hash(step, slice->first_layer(), slice->end_layer()));
    slice->set_size_bytes(100 + stage);
    return snapshot;
  }

  std::optional<v1::Checkpoint> Add(int64_t stage, const v1::StageSnapshot& snapshot) {
    return book_.Add(stage, absl::StrCat("w", stage), snapshot, absl::FromUnixSeconds(1000));
  }
  // On its own worker, and on the next one.
  void Replicate(int64_t stage, int64_t step) {
    v1::StageSnapshot snapshot = Snapshot(stage, step);
    Add(stage, snapshot);
    snapshot.set_holder(absl::StrCat("w", (stage + 1) % stages_));
    EXPECT_FALSE(Add(stage, snapshot).has_value());
  }
  void ReplicateAll(int64_t step) {
    for (int64_t k = 0; k < stages_; ++k) Replicate(k, step);
  }
  std::optional<v1::Checkpoint> Store(int64_t stage, int64_t step) {
    v1::StageSnapshot snapshot = Snapshot(stage, step);
    EXPECT_FALSE(Add(stage, snapshot).has_value());
    snapshot.set_in_store(true);
    return Add(stage, snapshot);
  }
  // All of it, verified.
  void Checkpoint(int64_t step) {
    std::optional<v1::Checkpoint> whole;
    for (int64_t k = 0; k < stages_; ++k) whole = Store(k, step);
    ASSERT_TRUE(whole.has_value()) << step;
    book_.Verified(*whole);
  }

  static StateBook::Living Workers(std::initializer_list<std::string> names) {
    StateBook::Living living;
    for (const std::string& name : names) living[name] = name + ":1";
    return living;
  }
  static std::string Text(const StateBook::Point& point) {
    std::string text = absl::StrCat(point.source, " ", point.step);
    for (const v1::WeightsSlice& slice : point.slices) {
      absl::StrAppend(&text, ", ", slice.first_layer(), "-", slice.end_layer());
      for (const std::string& address : slice.holder_addresses())
        absl::StrAppend(&text, " ", address);
    }
    return text;
  }

  StateBook book_{Spec(2)};
  int stages_ = 0;
  bool simulated_ = false;
};

TEST_F(StateBookTest, BeginsAtTheBeginning) {
  Begin(1, 2);
  EXPECT_EQ(Text(book_.Latest(Workers({"w0", "w1"}), kNoLimit)), "the beginning 0");
  EXPECT_THAT(book_.DurableSteps(), IsEmpty());
  EXPECT_EQ(book_.KeepFrom(), 0);
}

TEST_F(StateBookTest, ACheckpointIsWholeOnceEachSliceIsInTheStore) {
  Begin(3, 2);
  EXPECT_FALSE(Store(1, 10).has_value());
  const auto whole = Store(0, 10);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->step(), 10);
  EXPECT_EQ(whole->generation(), 3);
  EXPECT_EQ(whole->unix_seconds(), 1000);
  EXPECT_EQ(whole->size_bytes(), 201);
  ASSERT_EQ(whole->slices_size(), 2);
  EXPECT_EQ(whole->slices(0).sha256(), Hash(10, 0, 3));
  EXPECT_EQ(whole->slices(1).end_layer(), 6);
  EXPECT_FALSE(Store(0, 10).has_value()) << "offered twice";
  EXPECT_THAT(book_.DurableSteps(), IsEmpty()) << "not before it is verified";
  EXPECT_EQ(Text(book_.Latest({}, kNoLimit)), "the beginning 0");
  book_.Verified(*whole);
  EXPECT_THAT(book_.DurableSteps(), ElementsAre(10));
  EXPECT_EQ(Text(book_.Latest({}, kNoLimit)), "checkpoint 10, 0-3, 3-6");
}

TEST_F(StateBookTest, SlicesOfTwoGenerationsMakeNoCheckpointTogether) {
  Begin(1, 2);
  EXPECT_FALSE(Store(0, 10).has_value());
  Begin(2, 2);
  EXPECT_FALSE(Store(1, 10).has_value());
  EXPECT_TRUE(Store(0, 10).has_value());
}

TEST_F(StateBookTest, OneDeadWorkerLeavesEachSliceWithANeighbour) {
  Begin(1, 3);
  ReplicateAll(20);
  EXPECT_EQ(Text(book_.Latest(Workers({"w0", "w1", "w2"}), kNoLimit)),
            "replicas 20, 0-2 w0:1 w1:1, 2-4 w1:1 w2:1, 4-6 w0:1 w2:1");
  EXPECT_EQ(Text(book_.Latest(Workers({"w0", "w2"}), kNoLimit)),
            "replicas 20, 0-2 w0:1, 2-4 w2:1, 4-6 w0:1 w2:1");
  EXPECT_EQ(Text(book_.Latest(Workers({"w2"}), kNoLimit)), "the beginning 0") << "0-2 is nowhere";
}

TEST_F(StateBookTest, GoesOnFromTheLaterOfCheckpointAndReplicas) {
  Begin(1, 2);
  Checkpoint(10);
  ReplicateAll(14);
  Replicate(0, 16);
  const auto all = Workers({"w0", "w1"});
  EXPECT_EQ(Text(book_.Latest(all, kNoLimit)), "replicas 14, 0-3 w0:1 w1:1, 3-6 w0:1 w1:1");
  EXPECT_EQ(Text(book_.Latest(all, 13)), "checkpoint 10, 0-3, 3-6");
  EXPECT_EQ(Text(book_.Latest(all, 9)), "the beginning 0");
  EXPECT_EQ(Text(book_.Latest({}, kNoLimit)), "checkpoint 10, 0-3, 3-6");
  // The last one is whole now, and the one before is of no use any more.
  Replicate(1, 16);
  EXPECT_EQ(book_.Latest(all, kNoLimit).step, 16);
  EXPECT_EQ(book_.Latest(all, 15).step, 10);
  EXPECT_EQ(book_.KeepFrom(), 16);
}

TEST_F(StateBookTest, ACheckpointIsAlsoHadFromWorkersThatHoldIt) {
  Begin(1, 2);
  Checkpoint(10);
  EXPECT_EQ(Text(book_.Latest(Workers({"w1"}), kNoLimit)), "checkpoint 10, 0-3, 3-6 w1:1");
  // What a neighbour reports later counts, too.
  v1::StageSnapshot snapshot = Snapshot(0, 10);
  snapshot.set_holder("w1");
  Add(0, snapshot);
  EXPECT_EQ(Text(book_.Latest(Workers({"w1"}), kNoLimit)), "checkpoint 10, 0-3 w1:1, 3-6 w1:1");
}

TEST_F(StateBookTest, ASnapshotOfOneWorkerIsKeptUntilItIsSafeElsewhere) {
  Begin(1, 2);
  Checkpoint(10);
  for (int64_t k = 0; k < 2; ++k) Add(k, Snapshot(k, 12));
  EXPECT_EQ(book_.KeepFrom(), 10) << "each slice of 12 is with one worker only";
  ReplicateAll(12);
  EXPECT_EQ(book_.KeepFrom(), 12);
}

// Stage 0 has stored its slice of 12 and goes on; stage 1 is still at it when 14 is with all
// neighbours. Its file of 12 must not be dropped under its hands.
TEST_F(StateBookTest, KeepsWhatIsStillOnItsWayToTheStore) {
  Begin(1, 2);
  Store(0, 12);
  Add(1, Snapshot(1, 12));
  ReplicateAll(14);
  EXPECT_EQ(book_.KeepFrom(), 12);
  const auto whole = Store(1, 12);
  ASSERT_TRUE(whole.has_value());
  book_.Verified(*whole);
  EXPECT_EQ(book_.KeepFrom(), 14);
}

TEST_F(StateBookTest, DoesNotWaitForWhatFailed) {
  Begin(1, 2);
  Store(0, 12);
  v1::StageSnapshot failed;
  failed.set_step(12);
  failed.set_failed("the disk is full");
  EXPECT_FALSE(Add(1, failed).has_value());
  ReplicateAll(14);
  EXPECT_EQ(book_.KeepFrom(), 14);
}

TEST_F(StateBookTest, AnotherKTakesTheSlicesOfTheOneBefore) {
  Begin(1, 3);
  ReplicateAll(20);
  Begin(2, 2);
  EXPECT_EQ(book_.Latest(Workers({"w0", "w1", "w2"}), kNoLimit).slices.size(), 3u);
  ReplicateAll(24);
  EXPECT_EQ(Text(book_.Latest(Workers({"w0", "w1"}), kNoLimit)),
            "replicas 24, 0-3 w0:1 w1:1, 3-6 w0:1 w1:1");
}

TEST_F(StateBookTest, AWorkerThatCameBackHoldsWhatItSaysAndNoMore) {
  Begin(1, 2);
  ReplicateAll(20);
  book_.Forget("w0");
  const auto w0 = Workers({"w0"});
  EXPECT_EQ(book_.Latest(w0, kNoLimit).step, 0);
  v1::HeldSlice held;
  held.set_job_id("j1");
  held.set_step(20);
  for (const std::string& hash :
       {Hash(20, 0, 3), Hash(20, 3, 6), Hash(99, 0, 1), std::string("x")}) {
    held.set_sha256(hash);
    book_.Held("w0", held);
  }
  EXPECT_EQ(Text(book_.Latest(w0, kNoLimit)), "replicas 20, 0-3 w0:1, 3-6 w0:1");
}

// The coordinator was restarted: rows from the store, slices from the workers that register, and
// what stages report once more.
TEST_F(StateBookTest, PutsTheBookTogetherAgainAfterARestart) {
  Begin(1, 2);
  Checkpoint(10);
  v1::Job job;
  std::optional<v1::Checkpoint> whole;
  for (int64_t k = 0; k < 2; ++k) whole = Store(k, 20);
  ASSERT_TRUE(whole.has_value());
  *job.add_checkpoints() = *whole;
  book_ = StateBook(Spec(2));
  book_.Restore(job.checkpoints());
  v1::HeldSlice held;
  held.set_step(20);
  held.set_sha256(Hash(20, 3, 6));
  book_.Held("w1", held);
  held.set_step(22);
  for (const auto& [first, end] : {std::pair{0, 3}, {3, 6}}) {
    held.set_sha256(Hash(22, first, end));
    book_.Held("w0", held);
  }
  const auto all = Workers({"w0", "w1"});
  EXPECT_EQ(Text(book_.Latest(all, kNoLimit)), "checkpoint 20, 0-3, 3-6 w1:1");
  Begin(1, 2);
  for (int64_t k = 0; k < 2; ++k) {
    v1::StageSnapshot snapshot = Snapshot(k, 22);
    snapshot.set_holder("w0");
    Add(k, snapshot);
  }
  EXPECT_EQ(Text(book_.Latest(all, kNoLimit)), "replicas 22, 0-3 w0:1, 3-6 w0:1");
}

TEST_F(StateBookTest, TakesTheCheckpointBeforeADamagedOne) {
  Begin(1, 2);
  Checkpoint(10);
  Checkpoint(20);
  const auto damaged = book_.Damaged(Hash(20, 3, 6), "its bytes have the hash 1234");
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_EQ(damaged[0].step(), 20);
  EXPECT_EQ(damaged[0].damaged(), "layers 3 to 6: its bytes have the hash 1234");
  EXPECT_THAT(book_.Damaged(Hash(20, 3, 6), "again"), IsEmpty());
  EXPECT_THAT(book_.DurableSteps(), ElementsAre(10));
  EXPECT_EQ(Text(book_.Latest({}, kNoLimit)), "checkpoint 10, 0-3, 3-6");
  // The step is done once more, and its checkpoint takes the damaged one's place.
  Begin(2, 2);
  Checkpoint(20);
  EXPECT_EQ(book_.Latest({}, kNoLimit).step, 20);
}

TEST_F(StateBookTest, TakesTheSnapshotBeforeADamagedOne) {
  Begin(1, 2);
  Checkpoint(10);
  ReplicateAll(14);
  EXPECT_THAT(book_.Damaged(Hash(14, 0, 3), "nobody has it"), IsEmpty());
  EXPECT_EQ(Text(book_.Latest(Workers({"w0", "w1"}), kNoLimit)), "checkpoint 10, 0-3, 3-6")
      << "from the store: workers need not have kept theirs";
}

// A rollback goes back to the checkpoint of 10 and leaves out 11 to 17: the state after 14 is one
// that was never to be, although workers hold it and the store may be about to.
TEST_F(StateBookTest, WhatWasLeftOutIsNotGoneOnFrom) {
  Begin(1, 2);
  Checkpoint(10);
  ReplicateAll(14);
  std::optional<v1::Checkpoint> late;
  for (int64_t k = 0; k < 2; ++k) late = Store(k, 16);
  v1::StepRange range;
  range.set_first(11);
  range.set_last(17);
  book_.LeaveOut(range);
  ReplicateAll(15);
  book_.Verified(*late);
  const auto all = Workers({"w0", "w1"});
  EXPECT_EQ(book_.Latest(all, kNoLimit).step, 10);
  EXPECT_THAT(book_.DurableSteps(), ElementsAre(10));
  EXPECT_THAT(book_.Superfluous(), ElementsAre(16));
  Begin(2, 2);
  ReplicateAll(18);
  EXPECT_EQ(book_.Latest(all, kNoLimit).step, 18);
}

TEST_F(StateBookTest, KeepsTheLastAndEveryNth) {
  book_ = StateBook(Spec(2, 100));
  Begin(1, 1);
  for (const int64_t step : {50, 100, 150, 200, 250}) Checkpoint(step);
  EXPECT_THAT(book_.Superfluous(), ElementsAre(50, 150));
}

TEST_F(StateBookTest, KeepsThreeWhereNothingIsSaidAndAlwaysOne) {
  for (const auto& [spec, superfluous] :
       {std::pair{v1::CheckpointSpec(), std::vector<int64_t>{1, 2}},
        {Spec(0), std::vector<int64_t>{1, 2, 3, 4}}}) {
    book_ = StateBook(spec);
    Begin(1, 1);
    for (int64_t step = 1; step <= 5; ++step) Checkpoint(step);
    EXPECT_EQ(book_.Superfluous(), superfluous) << spec.DebugString();
  }
}

TEST_F(StateBookTest, ADamagedCheckpointDoesNotCountAsOneOfTheLast) {
  Begin(1, 1);
  for (int64_t step = 1; step <= 4; ++step) Checkpoint(step);
  EXPECT_THAT(book_.Superfluous(), ElementsAre(1, 2));
  book_.Damaged(Hash(4, 0, 6), "torn");
  EXPECT_THAT(book_.Superfluous(), ElementsAre(1)) << "2 and 3 are the last two sound ones";
  Checkpoint(5);
  Checkpoint(6);
  EXPECT_THAT(book_.Superfluous(), ElementsAre(1, 2, 3, 4));
}

TEST_F(StateBookTest, RefusesWhatNoStageCouldHaveMade) {
  Begin(1, 2);
  const auto refused = [&](int64_t stage, const v1::StageSnapshot& snapshot) {
    EXPECT_FALSE(Add(stage, snapshot).has_value());
    return std::string(book_.Check(stage, snapshot).message());
  };
  EXPECT_EQ(refused(0, Snapshot(0, 5)), "");
  EXPECT_THAT(refused(2, Snapshot(1, 5)), HasSubstr("of stage 2"));
  EXPECT_THAT(refused(-1, Snapshot(1, 5)), HasSubstr("of stage -1"));
  EXPECT_THAT(refused(0, Snapshot(0, 0)), HasSubstr("after step 0"));
  EXPECT_THAT(refused(0, Snapshot(1, 5)), HasSubstr("layers 3 to 6, its plan says 0 to 3"));
  v1::StageSnapshot snapshot = Snapshot(0, 5);
  snapshot.mutable_slice()->set_sha256("../../etc/passwd");
  EXPECT_THAT(refused(0, snapshot), HasSubstr("no hash"));
  snapshot = Snapshot(0, 5);
  snapshot.mutable_slice()->set_size_bytes(int64_t{1} << 62);
  EXPECT_THAT(refused(0, snapshot), HasSubstr("no size"));
  snapshot = Snapshot(0, 5);
  snapshot.set_in_store(true);
  snapshot.mutable_slice()->set_uri("file:///etc/passwd");
  EXPECT_THAT(refused(0, snapshot), HasSubstr("the job's store is the coordinator's"));
}

TEST_F(StateBookTest, ASharedFoldersSlicesLieInIt) {
  v1::CheckpointSpec spec = Spec(2);
  spec.set_store("file:///mnt/shared");
  book_ = StateBook(spec);
  Begin(1, 1);
  v1::StageSnapshot snapshot = Snapshot(0, 5);
  snapshot.set_in_store(true);
  for (const char* uri : {"", "file:///mnt/sharedx/a", "file:///mnt/shared/../a", "/mnt/shared/a",
                          "file:///mnt/shared/", "file:///mnt/shared/.."}) {
    snapshot.mutable_slice()->set_uri(uri);
    EXPECT_FALSE(Add(0, snapshot).has_value()) << uri;
  }
  snapshot.mutable_slice()->set_uri("file:///mnt/shared/j1/5/0-6-ab.safetensors");
  const auto whole = Add(0, snapshot);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->slices(0).uri(), snapshot.slice().uri());
}

TEST_F(StateBookTest, ASimulatedJobsStateIsStepsWithoutSlices) {
  Begin(1, 2, /*simulated=*/true);
  ReplicateAll(4);
  EXPECT_EQ(Text(book_.Latest(Workers({"w1"}), kNoLimit)), "replicas 4");
  EXPECT_EQ(Text(book_.Latest({}, kNoLimit)), "the beginning 0");
  v1::StageSnapshot with_slice;
  with_slice.set_step(5);
  with_slice.mutable_slice()->set_size_bytes(1);
  EXPECT_FALSE(book_.Check(0, with_slice).ok());
  Checkpoint(6);
  EXPECT_EQ(Text(book_.Latest({}, kNoLimit)), "checkpoint 6");
}

TEST_F(StateBookTest, HoldsOnToNoMoreThanItMay) {
  Begin(1, 2);
  for (int64_t step = 1; step <= 1000; ++step) Add(0, Snapshot(0, step));
  for (int64_t step = 995; step <= 1000; ++step) Replicate(1, step);
  EXPECT_EQ(book_.Latest(Workers({"w0", "w1"}), kNoLimit).step, 1000);
  v1::HeldSlice held;
  held.set_step(5000);
  for (size_t i = 0; i < StateBook::kMaxHeld + 100; ++i) {
    held.set_sha256(Sha256Hex(absl::StrCat(i)));
    book_.Held("w0", held);
  }
  EXPECT_EQ(book_.Latest(Workers({"w0", "w1"}), kNoLimit).step, 1000);
}

}  // namespace
}  // namespace headrace
