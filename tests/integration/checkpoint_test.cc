// Checkpoints with real processes: when they are made and kept, that they cost no bit, and that a
// job goes on from one anywhere, on other workers, from another folder, past a damaged one.
#include <filesystem>
#include <fstream>

#include "tests/integration/survival_fixture.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class CheckpointTest : public SurvivalTest {
 protected:
  static void SetUpTestSuite() { StartCluster(SlowWorkers(3)); }

  // Pauses the job, with at least one checkpoint, and waits until its workers are free.
  void Pause(const std::string& id) {
    Client({"pause", id});
    const auto paused = cluster_->WaitForState(id, v1::JOB_STATE_PAUSED, absl::Seconds(20));
    ASSERT_TRUE(paused.ok()) << paused.status();
    ASSERT_TRUE(cluster_->WaitForFreeWorkers(num_workers(), absl::Seconds(10)).ok());
  }
  // Files of this name anywhere in the folder.
  static std::vector<std::string> FilesOf(const std::string& folder, const std::string& part) {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file() &&
          entry.path().filename().string().find(part) != std::string::npos) {
        paths.push_back(entry.path().string());
      }
    }
    return paths;
  }
  static void FlipABit(const std::string& path) {
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(path) / 2);
    file.seekg(middle);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(middle);
    file.put(byte);
    ASSERT_TRUE(file.good()) << path;
  }
};

TEST_F(CheckpointTest, ComeEveryFewStepsAreKeptAsToldAndCostNoBit) {
  const TinyJob job = SurvivingJob(2, "  every_steps: 4\n  keep_last: 2\n  keep_every: 12\n");
  const nlohmann::json done = AwaitDone(Submit(job));
  EXPECT_THAT(CheckpointSteps(done), IsSupersetOf({12, 24, 36}));
  EXPECT_LE(CheckpointSteps(done).size(), 5u);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
}

TEST_F(CheckpointTest, ComesWhenSomebodyAsks) {
  const std::string id = SubmitUntil(SurvivingJob(2, "  replicate: off\n"), 2);
  EXPECT_THAT(CheckpointSteps(cluster_->Describe(id)), ElementsAre());
  Client({"checkpoint", id});
  EXPECT_GE(AwaitCheckpoint(id, 1), 2);
  EXPECT_EQ(OutcomeOf(AwaitDone(id)), Undisturbed(SurvivingJob(2, "")));
}

TEST_F(CheckpointTest, AnotherJobGoesOnFromOneWithOtherStages) {
  const TinyJob job = SurvivingJob(3, "  every_steps: 10\n  keep_last: 4\n");
  const std::string first = Submit(job);
  const Outcome whole = OutcomeOf(AwaitDone(first), 10);
  TinyJob other = job;
  other.stages = 2;
  other.schedule = "gpipe";
  other.recompute = "never";
  const std::string path = cluster_->WriteFile("other.yaml", JobFileText(other));
  const ClientRun run =
      cluster_->Run({"submit", path, "--from", absl::StrCat(first, "@10"), "-o", "json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string id = nlohmann::json::parse(run.out).at("job_id");
  const nlohmann::json done = AwaitDone(id);
  EXPECT_EQ(OutcomeOf(done), whole);
  EXPECT_EQ(done.at("from_job"), first);
  EXPECT_EQ(done.at("from_step"), 10);
}

TEST_F(CheckpointTest, APausedJobFreesItsWorkersAndGoesOn) {
  const TinyJob job = SurvivingJob(2, "  replicate: off\n");
  const std::string id = SubmitUntil(job, 5);
  Pause(id);
  const int64_t paused_at = cluster_->Describe(id).at("step");
  EXPECT_LT(paused_at, job.steps);
  EXPECT_THAT(CheckpointSteps(cluster_->Describe(id)), Contains(paused_at));
  Client({"resume", id});
  EXPECT_EQ(OutcomeOf(AwaitDone(id)), Undisturbed(job));
}

TEST_F(CheckpointTest, ACancelledJobIsResumedFromItsLastGoodOne) {
  const TinyJob job = SurvivingJob(2, "  every_steps: 5\n");
  const std::string id = SubmitUntil(job, 8);
  AwaitCheckpoint(id, 5);
  Client({"cancel", id});
  ASSERT_TRUE(cluster_->WaitForState(id, v1::JOB_STATE_CANCELLED).ok());
  Client({"resume", id});
  EXPECT_EQ(OutcomeOf(AwaitDone(id)), Undisturbed(job));
}

TEST_F(CheckpointTest, ADamagedSliceIsNamedAndTheOneBeforeIsUsed) {
  const TinyJob job = SurvivingJob(2, "  every_steps: 5\n  keep_last: 3\n  replicate: off\n");
  const std::string id = SubmitUntil(job, 11);
  AwaitCheckpoint(id, 10);
  Pause(id);
  const nlohmann::json paused = cluster_->Describe(id);
  const std::string slice = paused.at("checkpoints").back().at("slices")[0].at("sha256");
  const int64_t step = paused.at("checkpoints").back().at("step");
  // Wherever it lies: the store, and what workers still hold of it.
  for (const std::string& path : FilesOf(cluster_->dir(), slice)) FlipABit(path);
  Client({"resume", id});
  const nlohmann::json done = AwaitDone(id);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  EXPECT_THAT(Events(id), HasSubstr(slice.substr(0, 8)));
  for (const nlohmann::json& checkpoint : done.at("checkpoints")) {
    if (checkpoint.at("step") == step && checkpoint.contains("damaged")) {
      EXPECT_THAT(checkpoint.at("damaged").get<std::string>(), HasSubstr("slice"));
    }
  }
}

TEST_F(CheckpointTest, MayLieInASharedFolder) {
  const std::string folder = absl::StrCat(cluster_->dir(), "/shared");
  std::filesystem::create_directory(folder);
  const TinyJob job =
      SurvivingJob(2, absl::StrCat("  every_steps: 10\n  store: file://", folder, "\n"));
  const std::string id = SubmitUntil(job, 12);
  AwaitCheckpoint(id, 10);
  EXPECT_EQ(FilesOf(absl::StrCat(folder, "/", id, "/10"), ".safetensors").size(), 2u);
  Pause(id);
  Client({"resume", id});
  EXPECT_EQ(OutcomeOf(AwaitDone(id)), Undisturbed(job));
  EXPECT_TRUE(FilesOf(folder, ".tmp").empty());
}

TEST_F(CheckpointTest, ASharedFolderThatCannotBeWrittenIsSaidAndTrainingGoesOn) {
  const std::string in_the_way = cluster_->WriteFile("in-the-way", "a file");
  const TinyJob job =
      SurvivingJob(2, absl::StrCat("  every_steps: 10\n  store: file://", in_the_way, "\n"));
  const std::string id = Submit(job);
  const nlohmann::json done = AwaitDone(id);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  EXPECT_THAT(CheckpointSteps(done), ElementsAre());
  EXPECT_THAT(Events(id), AllOf(HasSubstr("checkpoint"), HasSubstr("in-the-way")));
}

}  // namespace
}  // namespace headrace
