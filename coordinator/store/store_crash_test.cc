// A coordinator that is killed at any moment leaves a store that opens, in which everything that
// was committed together is there together, and no manifest points at what is not there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/sha256.h"
#include "common/status.h"
#include "coordinator/store/store.h"

namespace headrace {
namespace {

constexpr int kRounds = 25;
constexpr int64_t kKept = 2;  // checkpoints

std::string SliceOf(int64_t step, int64_t stage) {
  return absl::StrCat("slice ", stage, " after step ", step, std::string(5000, 'x'));
}

void UploadSlice(Store* store, const std::string& content) {
  const auto writer =
      store->blobs().StartUpload(Sha256Hex(content), static_cast<int64_t>(content.size()), 0);
  if (!writer.ok()) return;  // it is there from before
  if (!(*writer)->Append(content).ok() || !(*writer)->Commit().ok()) _exit(3);
}

// One turn of the driver: all in one commit.
absl::Status CommitStep(JobStore* jobs, int64_t number) {
  HEADRACE_RETURN_IF_ERROR(jobs->Begin());
  v1::Job job;
  job.set_id("j1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_step(number);
  HEADRACE_RETURN_IF_ERROR(jobs->SaveJob(job, {}));
  v1::StepResult step;
  step.set_step(number);
  HEADRACE_RETURN_IF_ERROR(jobs->SaveStep("j1", step));
  v1::JobEvent event;
  HEADRACE_RETURN_IF_ERROR(jobs->SaveEvent("j1", &event));
  v1::Checkpoint checkpoint;
  checkpoint.set_step(number);
  for (int64_t stage = 0; stage < 2; ++stage) {
    checkpoint.add_slices()->set_sha256(Sha256Hex(SliceOf(number, stage)));
  }
  HEADRACE_RETURN_IF_ERROR(jobs->SaveCheckpoint("j1", checkpoint));
  if (number > kKept) HEADRACE_RETURN_IF_ERROR(jobs->DropCheckpoints("j1", {number - kKept}));
  return jobs->Commit();
}

absl::Status DeleteDoomed(Store* store) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> doomed, store->jobs().LoadDoomed());
  for (const std::string& name : doomed) {
    HEADRACE_RETURN_IF_ERROR(store->RemoveDoomed(name));
    HEADRACE_RETURN_IF_ERROR(store->jobs().ForgetDoomed(name));
  }
  return absl::OkStatus();
}

// The child: never returns.
[[noreturn]] void WriteUntilKilled(const std::string& folder) {
  const auto store = Store::Open(folder);
  if (!store.ok()) _exit(1);
  const auto steps = (*store)->jobs().LoadSteps("j1", 0, 0);
  if (!steps.ok()) _exit(2);
  for (int64_t number = static_cast<int64_t>(steps->size()) + 1;; ++number) {
    for (int64_t stage = 0; stage < 2; ++stage) UploadSlice(store->get(), SliceOf(number, stage));
    if (!CommitStep(&(*store)->jobs(), number).ok()) _exit(4);
    if (!DeleteDoomed(store->get()).ok()) _exit(5);
  }
}

int64_t CountBlobs(const std::string& folder) {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder + "/blobs")) {
    count += entry.is_regular_file() ? 1 : 0;
  }
  return count;
}

// Returns the last step.
int64_t CheckConsistent(const std::string& folder) {
  const auto store = Store::Open(folder);
  EXPECT_TRUE(store.ok()) << store.status();
  if (!store.ok()) return -1;
  JobStore& jobs = (*store)->jobs();
  const auto stored = jobs.LoadJob("j1");
  if (absl::IsNotFound(stored.status())) return 0;
  EXPECT_TRUE(stored.ok()) << stored.status();
  const int64_t last = stored->job.step();
  EXPECT_EQ(jobs.LoadSteps("j1", 0, 0)->size(), static_cast<size_t>(last));
  EXPECT_EQ(jobs.LoadEvents("j1", 0, 0)->size(), static_cast<size_t>(last));
  EXPECT_EQ(stored->job.checkpoints_size(), std::min(last, kKept));
  for (const v1::Checkpoint& checkpoint : stored->job.checkpoints()) {
    EXPECT_EQ(checkpoint.slices_size(), 2);
    for (const v1::WeightsSlice& slice : checkpoint.slices()) {
      EXPECT_TRUE((*store)->blobs().Stat(slice.sha256())->complete)
          << "the checkpoint of step " << checkpoint.step() << " points at nothing";
    }
  }
  // What is left over is what was doomed, and what was uploaded for a step that never came.
  EXPECT_TRUE(DeleteDoomed(store->get()).ok());
  EXPECT_LE(CountBlobs(folder), 2 * std::min(last, kKept) + 2);
  return last;
}

TEST(StoreCrashTest, KilledAtAnyMomentItLeavesAStoreThatOpensAndIsConsistent) {
  const std::string folder = ::testing::TempDir() + "/store_crash";
  std::filesystem::remove_all(folder);
  std::mt19937 random(7);
  int64_t last = 0;
  for (int round = 0; round < kRounds; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) WriteUntilKilled(folder);
    absl::SleepFor(absl::Microseconds(2000 + random() % 60000));  // the moment is the test's matter
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed: exit code " << WEXITSTATUS(status);
    const int64_t now = CheckConsistent(folder);
    ASSERT_GE(now, last) << "in round " << round << " committed steps were lost";
    ASSERT_FALSE(HasFailure()) << "in round " << round;
    last = now;
  }
  EXPECT_GT(last, 0) << "nothing was ever committed";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace headrace
