// The verbs that keep a job alive, and a coordinator that goes and comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli_fixture.h"
#include "client/render/json.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// j4 as it is after a step.
v1::Job At(v1::Job job, v1::JobState state, int64_t step) {
  job.set_id("j4");
  job.set_name("endless");
  job.set_state(state);
  job.set_step(step);
  job.clear_steps();
  return job;
}

void AddCheckpointAt(int64_t step, v1::Job* job) {
  v1::Checkpoint* made = job->add_checkpoints();
  made->set_step(step);
  made->set_size_bytes(3 << 20);
}

TEST_F(CliTest, CheckpointWaitsUntilItIsWholeAndPrintsItsStep) {
  v1::Job job = At(done_, v1::JOB_STATE_RUNNING, 7);
  AddCheckpointAt(5, &job);  // an older one does not count
  fake_->AddJob(job);
  AddCheckpointAt(8, &job);
  fake_->ChangeJob(2, job);
  const Result text = Ask({"checkpoint", "endless"});
  EXPECT_EQ(text.code, ExitCode::kDone) << text.err;
  EXPECT_EQ(text.out, "8\n");
  EXPECT_THAT(text.err, HasSubstr("job j4 has a checkpoint after step 8, 3.0 MiB, in the coord"));
  EXPECT_EQ(fake_->asked(), std::vector<std::string>{"checkpoint j4"});
  const Json json = Json::parse(Ask({"checkpoint", "j4", "-o", "json"}).out);
  EXPECT_EQ(json["step"], 8);
}

TEST_F(CliTest, CheckpointEndsWhenItIsTooLateOrTheJobHasEnded) {
  fake_->AddJob(At(done_, v1::JOB_STATE_RUNNING, 7));
  const Result late = Ask({"checkpoint", "j4", "--timeout", "100ms"});
  EXPECT_EQ(late.code, ExitCode::kTimedOut);
  EXPECT_THAT(late.err, HasSubstr("a checkpoint of job j4 after step 7 has not happened in time"));
  EXPECT_EQ(Ask({"checkpoint", "j4", "--no-wait"}).code, ExitCode::kDone);
  v1::Job damaged = At(done_, v1::JOB_STATE_FAILED, 9);
  AddCheckpointAt(8, &damaged);
  damaged.mutable_checkpoints(0)->set_damaged("a slice is gone");
  fake_->ChangeJob(1, damaged);
  const Result failed = Ask({"checkpoint", "j4"});
  EXPECT_EQ(failed.code, ExitCode::kJobFailed);
  EXPECT_THAT(failed.err,
              HasSubstr("job j4 (endless) stopped before a checkpoint after step 7 was whole: "
                        "failed"));
  EXPECT_EQ(Ask({"checkpoint", "j9"}).code, ExitCode::kNotFound);
}

// A recovery forgets what the generation before it was asked for.
TEST_F(CliTest, CheckpointAsksTheNextGenerationAgain) {
  v1::Job job = At(done_, v1::JOB_STATE_RUNNING, 7);
  job.set_generation(1);
  fake_->AddJob(job);
  job.set_generation(2);
  job.set_step(3);
  fake_->ChangeJob(1, job);
  const Result result = Ask({"checkpoint", "j4", "--timeout", "1s"});
  EXPECT_THAT(result.err, HasSubstr("has not happened in time"));
  EXPECT_EQ(fake_->asked(), (std::vector<std::string>{"checkpoint j4", "checkpoint j4"}));
}

TEST_F(CliTest, PauseWaitsAndResumeGoesOn) {
  fake_->ChangeJob(1, At(done_, v1::JOB_STATE_PAUSED, 120));
  const Result paused = Ask({"pause", "endless"});
  EXPECT_EQ(paused.code, ExitCode::kDone) << paused.err;
  EXPECT_THAT(paused.err, HasSubstr("job j4 (endless) is paused after step 120; it goes on with "
                                    "`headrace resume j4`"));
  const Result resumed = Ask({"resume", "endless"});
  EXPECT_EQ(resumed.code, ExitCode::kDone);
  EXPECT_EQ(resumed.out, "");
  EXPECT_THAT(resumed.err, HasSubstr("job j4 goes on from its checkpoint after step 120"));
  EXPECT_EQ(Json::parse(Ask({"resume", "j4", "-o", "json"}).out)["from_step"], 120);
  EXPECT_EQ(fake_->asked(), (std::vector<std::string>{"pause j4", "resume j4", "resume j4"}));
  EXPECT_EQ(Ask({"resume", "broken", "--watch"}).code, ExitCode::kJobFailed);
}

TEST_F(CliTest, PauseOfAJobThatEndsMeanwhileIsRefused) {
  fake_->ChangeJob(1, At(done_, v1::JOB_STATE_DONE, 300));
  const Result ended = Ask({"pause", "endless"});
  EXPECT_EQ(ended.code, ExitCode::kRefused);
  EXPECT_THAT(ended.err, HasSubstr("job j4 (endless) ended before it could be paused: done"));
  fake_->AddJob(At(done_, v1::JOB_STATE_RUNNING, 1));
  EXPECT_EQ(Ask({"pause", "endless", "--timeout", "100ms"}).code, ExitCode::kTimedOut);
  EXPECT_EQ(Ask({"pause", "endless", "--no-wait"}).code, ExitCode::kDone);
  EXPECT_EQ(Ask({"resume", "endless"}).code, ExitCode::kRefused);
}

TEST_F(CliTest, DrainWaitsUntilTheWorkerServesNothing) {
  fake_->FreeWorker(2, "w1");
  const Result moved = Ask({"drain", "w1"});
  EXPECT_EQ(moved.code, ExitCode::kDone) << moved.err;
  EXPECT_THAT(moved.err, AllOf(HasSubstr("worker w1 serves nothing any more of job j4, which is "
                                         "running"),
                               HasSubstr("`headrace uncordon w1`")));
  EXPECT_THAT(Ask({"drain", "w2"}).err, HasSubstr("worker w2 serves nothing;"));
  fake_->FreeWorker(1000, "w1");
  const Result late = Ask({"drain", "w1", "--timeout", "100ms"});
  EXPECT_EQ(late.code, ExitCode::kTimedOut);
  EXPECT_THAT(late.err, HasSubstr("the move of job j4 away from worker w1 has not happened"));
  EXPECT_EQ(Ask({"drain", "w1", "--no-wait"}).code, ExitCode::kDone);
  EXPECT_EQ(Ask({"drain", "nobody"}).code, ExitCode::kNotFound);
}

TEST_F(CliTest, CordonAndUncordonNameTheWorker) {
  EXPECT_EQ(Ask({"cordon", "w3"}).code, ExitCode::kDone);
  EXPECT_EQ(Ask({"uncordon", "w3"}).code, ExitCode::kDone);
  EXPECT_EQ(fake_->asked(), (std::vector<std::string>{"cordon w3", "uncordon w3"}));
  EXPECT_EQ(Ask({"cordon", "nobody"}).code, ExitCode::kNotFound);
}

TEST_F(CliTest, SubmitsFromACheckpoint) {
  EXPECT_EQ(Ask({"submit", dir_ + "/job.yaml", "--from", "tiny@2"}).code, ExitCode::kDone);
  EXPECT_EQ(Ask({"submit", dir_ + "/job.yaml", "--from", "j1"}).code, ExitCode::kDone);
  ASSERT_EQ(fake_->submitted().size(), 2u);
  EXPECT_EQ(fake_->submitted()[0].from_job(), "tiny");
  EXPECT_EQ(fake_->submitted()[0].from_step(), 2);
  EXPECT_EQ(fake_->submitted()[1].from_job(), "j1");
  EXPECT_EQ(fake_->submitted()[1].from_step(), 0);
}

TEST_F(CliTest, AWatchOutlivesACoordinatorThatIsStartedAgain) {
  std::thread restarter([&] {
    while (fake_->watches().empty()) std::this_thread::yield();
    fake_.reset();
    auto next = std::make_unique<FakeCoordinator>(dir_ + "/c");
    next->AddJob(At(done_, v1::JOB_STATE_DONE, 3));
    fake_ = std::move(next);
  });
  const std::vector<std::string> at = {"--coordinator", "unix:" + dir_ + "/c"};
  const Result result = Run({"watch", "endless", at[0], at[1], "--state-dir", dir_ + "/state"});
  restarter.join();
  EXPECT_EQ(result.code, ExitCode::kDone) << result.err;
  EXPECT_THAT(result.err, HasSubstr(absl::StrCat("the coordinator at unix:", dir_,
                                                 "/c does not answer; trying again for 10m 00s")));
  EXPECT_THAT(result.err, HasSubstr("/c answers again, after "));
  EXPECT_THAT(result.out, HasSubstr("job j4 (endless) done"));
}

TEST_F(CliTest, AWatchGivesUpOnACoordinatorThatStaysAway) {
  const std::string address = fake_->address();
  std::thread stopper([&] {
    while (fake_->watches().empty()) std::this_thread::yield();
    fake_.reset();
  });
  const Result result = Run({"watch", "endless", "--coordinator", address, "--reconnect", "300ms",
                             "--state-dir", dir_ + "/state"});
  stopper.join();
  EXPECT_EQ(result.code, ExitCode::kUnreachable);
  EXPECT_THAT(result.err, HasSubstr("tried again for 300 ms; its workers train on without it"));
  EXPECT_THAT(result.err, Not(HasSubstr("answers again")));
}

TEST_F(CliTest, AWaitOutlivesTheCoordinatorUpToItsDeadline) {
  std::thread stopper([&] {
    while (fake_->asked().empty()) std::this_thread::yield();
    fake_.reset();
  });
  const std::string address = fake_->address();
  const Result result = Run({"pause", "endless", "--coordinator", address, "--timeout", "700ms",
                             "--state-dir", dir_ + "/state"});
  stopper.join();
  EXPECT_EQ(result.code, ExitCode::kTimedOut);
  EXPECT_THAT(result.err,
              HasSubstr("the pause of job j4 has not happened in time: no coordinator"));
}

}  // namespace
}  // namespace headrace
