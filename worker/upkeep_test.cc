// What real workers do with their state: checkpoints and snapshots while they train, leaving and
// going on elsewhere, and steps that are no good.
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/safetensors.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/worker_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kForever = 1'000'000;

class UpkeepTest : public WorkerServiceTest {
 protected:
  using Wanted = std::function<bool(const v1::StageEvent&)>;

  // Stages of one job on one worker each, ready and started.
  void Train(const std::vector<v1::StageAssignment>& stages) {
    for (size_t k = 0; k < stages.size(); ++k) {
      const grpc::Status status = workers_[k]->Assign(stages[k]);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
    for (const v1::StageAssignment& stage : stages) {
      const v1::StageEvent event =
          Await(stage, [](const v1::StageEvent& e) { return e.has_ready() || e.has_failed(); });
      ASSERT_TRUE(event.has_ready()) << event.failed().reason();
    }
    for (size_t k = 0; k < stages.size(); ++k) ASSERT_TRUE(workers_[k]->Start(stages[k]).ok());
  }
  std::vector<v1::StageAssignment> BothStages(int64_t steps) {
    return {Job(0, 2, steps), Job(1, 2, steps)};
  }

  // The first event of this stage that is wanted.
  v1::StageEvent Await(const v1::StageAssignment& stage, const Wanted& wanted) {
    return coordinator_.Await([&](const v1::StageEvent& e) {
      return e.job_id() == stage.job_id() && e.generation() == stage.generation() &&
             e.stage() == stage.stage() && wanted(e);
    });
  }
  v1::StageSnapshot AwaitInStore(const v1::StageAssignment& stage, int64_t step = 0) {
    return Await(stage,
                 [=](const v1::StageEvent& e) {
                   return e.snapshot().in_store() && (step == 0 || e.snapshot().step() == step);
                 })
        .snapshot();
  }
  v1::StageFinished AwaitEnd(const v1::StageAssignment& stage) {
    const v1::StageEvent end =
        Await(stage, [](const v1::StageEvent& e) { return e.has_finished() || e.has_failed(); });
    EXPECT_TRUE(end.has_finished()) << end.failed().reason();
    return end.finished();
  }
  // All parameters of a stage that has finished.
  std::string Payload(const v1::StageFinished& finished) {
    const std::string slice = coordinator_.Get(finished.weights().sha256());
    uint64_t header = 0;
    std::memcpy(&header, slice.data(), 8);
    return slice.substr(8 + header);
  }
  // The weights after so many steps that nothing interrupted.
  std::string Undisturbed(int64_t steps) {
    v1::StageAssignment alone = Job(0, 1, steps);
    alone.set_job_id("undisturbed");
    Train({alone});
    return Payload(AwaitEnd(alone));
  }
};

TEST_F(UpkeepTest, StagesThatLeaveGoOnElsewhereWithTheSameBits) {
  const std::vector<v1::StageAssignment> stages = BothStages(kForever);
  Train(stages);
  ASSERT_TRUE(workers_[0]->Control(stages[0]).ok());
  const int64_t checkpoint = AwaitInStore(stages[0]).step();
  EXPECT_EQ(AwaitInStore(stages[1]).step(), checkpoint) << "after the same step";

  ASSERT_TRUE(workers_[0]->Control(stages[0], /*leave=*/true).ok());
  const auto left = [](const v1::StageEvent& e) { return e.has_left(); };
  const int64_t step = Await(stages[0], left).left().step();
  EXPECT_EQ(Await(stages[1], left).left().step(), step);
  EXPECT_GT(step, checkpoint);
  EXPECT_EQ(Await(stages[0], left).left().reason(), "");

  v1::StageAssignment next = Job(0, 1, step + 3);
  next.set_generation(2);
  next.set_start_step(step);
  for (const v1::StageAssignment& stage : stages) {
    *next.add_weights() = AwaitInStore(stage, step).slice();
    EXPECT_FALSE(coordinator_.Get(next.weights().rbegin()->sha256()).empty());
  }
  Train({next});
  EXPECT_EQ(Await(next, [](const v1::StageEvent& e) { return e.has_step(); }).step().step(),
            step + 1);
  EXPECT_EQ(AwaitEnd(next).weights_step(), step + 3);
  EXPECT_TRUE(Payload(AwaitEnd(next)) == Undisturbed(step + 3));
}

TEST_F(UpkeepTest, CheckpointsByStepsGoIntoTheFolderBeforeTheEnd) {
  v1::StageAssignment alone = Job(0, 1, 4);
  v1::CheckpointSpec* spec = alone.mutable_spec()->mutable_checkpoint();
  spec->set_every_steps(2);
  spec->set_store(absl::StrCat("file://", dir_ / "nfs"));
  Train({alone});
  AwaitEnd(alone);
  for (const int64_t step : {2, 4}) {
    const v1::StageSnapshot snapshot = AwaitInStore(alone, step);
    const std::string path =
        dir_ / absl::StrCat("nfs/j1/", step, "/0-4-", snapshot.slice().sha256(), ".safetensors");
    EXPECT_EQ(snapshot.slice().uri(), absl::StrCat("file://", path));
    EXPECT_EQ(Sha256Hex(*ReadFile(path)), snapshot.slice().sha256());
    EXPECT_EQ((*SafetensorsFile::Open(path))->metadata().at("step"), absl::StrCat(step));
  }
  EXPECT_TRUE(coordinator_.Get(AwaitInStore(alone, 2).slice().sha256()).empty());
}

TEST_F(UpkeepTest, ANeighbourKeepsSnapshots) {
  std::vector<v1::StageAssignment> stages = BothStages(kForever);
  for (v1::StageAssignment& stage : stages) {
    stage.mutable_spec()->mutable_checkpoint()->set_replicate_every(2);
  }
  Train(stages);
  for (int k = 0; k < 2; ++k) {
    const v1::StageSnapshot snapshot =
        Await(stages[static_cast<size_t>(k)], [](const v1::StageEvent& e) {
          return !e.snapshot().holder().empty();
        }).snapshot();
    EXPECT_EQ(snapshot.step() % 2, 0);
    EXPECT_EQ(snapshot.holder(), absl::StrCat("w", 1 - k));
    EXPECT_FALSE(snapshot.in_store());
  }
  for (int k = 0; k < 2; ++k) workers_[k]->Stop(stages[static_cast<size_t>(k)]);
  EXPECT_GE(workers_[1]->slices()->Held().size(), 2u) << "its own and its neighbour's";
}

TEST_F(UpkeepTest, ASliceThatIsNowhereOrDamagedIsNamed) {
  v1::StageAssignment next = Job(0, 1, 5);
  next.set_start_step(2);
  v1::WeightsSlice* slice = next.add_weights();
  slice->set_end_layer(4);
  slice->set_sha256(Sha256Hex("the state"));
  slice->set_size_bytes(9);
  coordinator_.Put(slice->sha256(), "the stale");
  ASSERT_TRUE(workers_[0]->Assign(next).ok());
  const v1::StageFailed damaged =
      Await(next, [](const v1::StageEvent& e) { return e.has_failed(); }).failed();
  EXPECT_EQ(damaged.bad_slice(), slice->sha256()) << damaged.reason();
  EXPECT_THAT(damaged.reason(), HasSubstr(slice->sha256()));

  workers_[0]->Stop(next);  // which waits until it is gone
  // Its bytes are those of its hash, and still it is no state.
  next.set_generation(2);
  coordinator_.Put(slice->sha256(), "the state");
  ASSERT_TRUE(workers_[0]->Assign(next).ok());
  const v1::StageFailed wrong =
      Await(next, [](const v1::StageEvent& e) { return e.has_failed(); }).failed();
  EXPECT_EQ(wrong.bad_slice(), slice->sha256()) << wrong.reason();
  EXPECT_THAT(wrong.reason(), HasSubstr("not a safetensors file"));
}

TEST_F(UpkeepTest, AStepThatIsNotAppliedIsToldByAllStages) {
  std::vector<v1::StageAssignment> stages = BothStages(6);
  for (v1::StageAssignment& stage : stages) {
    // One step at this rate makes the weights so large that the next forward overflows.
    stage.mutable_spec()->mutable_training()->mutable_optimizer()->set_learning_rate(1e30);
    stage.mutable_spec()->mutable_recovery()->set_on_nan(v1::NAN_POLICY_ROLLBACK);
    stage.mutable_spec()->mutable_checkpoint()->set_every_steps(1);
  }
  Train(stages);
  const auto rolled_back = [](const v1::StageEvent& e) { return e.has_rollback(); };
  const v1::StageRollback first = Await(stages[0], rolled_back).rollback();
  EXPECT_THAT(first.reason(), HasSubstr(absl::StrCat("in step ", first.bad_step())));
  EXPECT_EQ(Await(stages[1], rolled_back).rollback().bad_step(), first.bad_step());
  EXPECT_EQ(AwaitInStore(stages[1], first.bad_step() - 1).step(), first.bad_step() - 1)
      << "what there is to go back to is in the store by then";
  EXPECT_EQ(workers_[0]->Current(), "");

  for (v1::StageAssignment& stage : stages) {
    stage.set_generation(2);
    stage.mutable_spec()->mutable_recovery()->set_on_nan(v1::NAN_POLICY_SKIP);
  }
  Train(stages);
  for (const v1::StageAssignment& stage : stages) {
    const v1::StageStep skipped = Await(stage, [&](const v1::StageEvent& e) {
                                    return e.step().step() == first.bad_step();
                                  }).step();
    EXPECT_THAT(skipped.skipped(), HasSubstr(absl::StrCat("in step ", first.bad_step())));
    EXPECT_EQ(AwaitEnd(stage).stop_reason(), "");
  }
}

TEST_F(UpkeepTest, StepsThatAreLeftOutAreNotRun) {
  v1::StageAssignment alone = Job(0, 1, 5);
  v1::StepRange* range = alone.add_skipped();
  range->set_first(2);
  range->set_last(3);
  Train({alone});
  EXPECT_EQ(AwaitEnd(alone).weights_step(), 5);
  std::set<int64_t> steps;
  coordinator_.Await([&](const v1::StageEvent& e) {
    if (e.has_step()) steps.insert(e.step().step());
    return e.has_finished();
  });
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 4, 5));
}

}  // namespace
}  // namespace headrace
