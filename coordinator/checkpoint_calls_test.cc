// Checkpoints, pausing, going on and cordoning, as clients ask for them and see them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>

#include "absl/time/clock.h"
#include "coordinator/coordinator_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

class CheckpointCallsTest : public CoordinatorServiceTest {
 protected:
  static constexpr absl::Duration kStepTime = absl::Milliseconds(5);

  // Long enough for whatever a test does to it.
  static v1::JobSpec LongSpec(int64_t steps = 1'000'000) {
    v1::JobSpec spec = Spec(1);
    spec.mutable_training()->set_steps(steps);
    spec.mutable_checkpoint()->set_keep_last(2);
    spec.mutable_recovery()->set_restart(v1::SWITCH_AUTO);
    return spec;
  }
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(grpc::Status (v1::CoordinatorService::Stub::*method)(
                                   grpc::ClientContext*, const Request&, Response*),
                               const Request& request) {
    grpc::ClientContext context;
    Deadline(&context);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }
  absl::StatusOr<v1::CheckpointJobResponse> Checkpoint(const std::string& job) {
    v1::CheckpointJobRequest request;
    request.set_job(job);
    return Ask(&v1::CoordinatorService::Stub::CheckpointJob, request);
  }
  absl::Status Pause(const std::string& job) {
    v1::PauseJobRequest request;
    request.set_job(job);
    return Ask(&v1::CoordinatorService::Stub::PauseJob, request).status();
  }
  absl::StatusOr<v1::ResumeJobResponse> Resume(const std::string& job) {
    v1::ResumeJobRequest request;
    request.set_job(job);
    return Ask(&v1::CoordinatorService::Stub::ResumeJob, request);
  }
  absl::StatusOr<v1::CordonWorkerResponse> Cordon(const std::string& worker, bool cordoned,
                                                  bool drain = false) {
    v1::CordonWorkerRequest request;
    request.set_worker(worker);
    request.set_cordoned(cordoned);
    request.set_drain(drain);
    return Ask(&v1::CoordinatorService::Stub::CordonWorker, request);
  }
  absl::StatusOr<std::string> SubmitFrom(const v1::JobSpec& spec, const std::string& job,
                                         int64_t step) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    *request.mutable_dataset() = dataset_;
    request.set_from_job(job);
    request.set_from_step(step);
    const auto response = Ask(&v1::CoordinatorService::Stub::SubmitJob, request);
    if (!response.ok()) return response.status();
    return response->job_id();
  }
  std::vector<v1::WorkerInfo> ListWorkers() {
    const auto response = Ask(&v1::CoordinatorService::Stub::ListWorkers, v1::ListWorkersRequest());
    EXPECT_TRUE(response.ok()) << response.status();
    return {response->workers().begin(), response->workers().end()};
  }

  // Waits, looking every few milliseconds, until the job is as `ready` says.
  template <typename Ready>
  v1::Job Await(const std::string& id, Ready ready) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (true) {
      v1::Job job = Get(id);
      if (ready(job)) return job;
      if (absl::Now() > deadline) {
        ADD_FAILURE() << "job " << id << " is " << v1::JobState_Name(job.state()) << " ("
                      << job.message() << ") at step " << job.step();
        return job;
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  v1::Job AwaitState(const std::string& id, v1::JobState state) {
    return Await(id, [&](const v1::Job& job) { return job.state() == state; });
  }
  v1::Job AwaitCheckpoints(const std::string& id, int count) {
    return Await(id, [&](const v1::Job& job) { return job.checkpoints_size() >= count; });
  }
  bool HasBlob(const std::string& sha256) {
    v1::StatBlobRequest request;
    request.set_sha256(sha256);
    const auto response = Ask(&v1::CoordinatorService::Stub::StatBlob, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response->complete();
  }
};

TEST_F(CheckpointCallsTest, ACheckpointIsMadeOnRequestAndShown) {
  AddWorker("w0", {.step_time = kStepTime});
  const auto id = Submit(LongSpec());
  ASSERT_TRUE(id.ok()) << id.status();
  AwaitStep(*id, 2);
  const auto asked = Checkpoint("bible");
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->job_id(), *id);
  EXPECT_GE(asked->after_step(), 1);
  const v1::Job job = AwaitCheckpoints(*id, 1);
  ASSERT_EQ(job.checkpoints_size(), 1);
  EXPECT_GT(job.checkpoints(0).step(), asked->after_step());
  EXPECT_EQ(job.checkpoints(0).generation(), 1);
  EXPECT_GT(job.checkpoints(0).unix_seconds(), 0);
  EXPECT_GT(job.checkpoints(0).size_bytes(), 0);
  ASSERT_EQ(job.checkpoints(0).slices_size(), 1);
  EXPECT_TRUE(HasBlob(job.checkpoints(0).slices(0).sha256()));
  EXPECT_EQ(Checkpoint("nobody").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Cancel(*id).ok());
  AwaitEnd(*id);
  EXPECT_EQ(Checkpoint(*id).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointCallsTest, OldCheckpointsAreDeletedWithTheirBlobs) {
  FakeWorker* w0 = AddWorker("w0", {.step_time = kStepTime, .checkpoint_every = 5});
  const auto id = Submit(LongSpec());
  ASSERT_TRUE(id.ok()) << id.status();
  const std::string first = AwaitCheckpoints(*id, 1).checkpoints(0).slices(0).sha256();
  const v1::Job job = Await(*id, [](const v1::Job& each) {
    return each.checkpoints_size() > 0 && each.checkpoints(0).step() >= 20;
  });
  EXPECT_LE(job.checkpoints_size(), 2);
  for (const absl::Time deadline = absl::Now() + kPatience; HasBlob(first);) {
    ASSERT_LT(absl::Now(), deadline) << "its blob is there still";
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(HasBlob(Get(*id).checkpoints().rbegin()->slices(0).sha256()));
  // And its worker is told what it need not keep.
  for (const absl::Time deadline = absl::Now() + kPatience; w0->dropped().empty();) {
    ASSERT_LT(absl::Now(), deadline) << "told nothing";
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(w0->dropped()[0].job_id(), *id);
}

TEST_F(CheckpointCallsTest, SlicesInASharedFolderAreReadBeforeTheyCount) {
  const std::string shared = std::filesystem::absolute(folder_ + "-shared");
  std::filesystem::remove_all(shared);
  v1::JobSpec spec = LongSpec();
  spec.mutable_checkpoint()->set_store("file://" + shared);
  AddWorker("w0", {.step_time = kStepTime, .checkpoint_every = 5, .folder = shared});
  const auto id = Submit(spec);
  ASSERT_TRUE(id.ok()) << id.status();
  const v1::Job job = AwaitCheckpoints(*id, 2);
  EXPECT_THAT(job.checkpoints(0).slices(0).uri(), HasSubstr("file://" + shared));
  Await(*id, [](const v1::Job& each) { return each.checkpoints(0).step() >= 20; });
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(shared))
    files += entry.is_regular_file();
  EXPECT_LE(files, 6) << "old ones are deleted, if not at once";
  ASSERT_TRUE(Cancel(*id).ok());
  AwaitEnd(*id);
  std::filesystem::remove_all(shared);
}

TEST_F(CheckpointCallsTest, AWatcherSeesAPauseAndWhatComesAfterIt) {
  AddWorker("w0", {.step_time = kStepTime});
  const auto id = Submit(LongSpec(150));
  ASSERT_TRUE(id.ok()) << id.status();
  AwaitStep(*id, 2);
  auto watch = std::async(std::launch::async, [&] { return Watch(*id); });
  ASSERT_TRUE(Pause(*id).ok());
  const v1::Job paused = AwaitState(*id, v1::JOB_STATE_PAUSED);
  ASSERT_EQ(paused.checkpoints_size(), 1);
  EXPECT_EQ(paused.checkpoints(0).step(), paused.step());
  EXPECT_LT(paused.step(), 150);
  const auto resumed = Resume(*id);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->from_step(), paused.step());
  const v1::Job job = AwaitState(*id, v1::JOB_STATE_DONE);
  EXPECT_EQ(job.generation(), 2);
  ASSERT_EQ(job.steps_size(), 150);
  int64_t step = 0;
  bool saw_pause = false;
  for (const v1::WatchJobResponse& update : watch.get()) {
    if (update.has_step()) {
      EXPECT_EQ(update.step().step(), ++step);
    }
    saw_pause |= update.has_job() && update.job().state() == v1::JOB_STATE_PAUSED;
  }
  EXPECT_EQ(step, 150);
  EXPECT_TRUE(saw_pause);
  EXPECT_EQ(Resume(*id).status().code(), absl::StatusCode::kFailedPrecondition) << "it is done";
}

TEST_F(CheckpointCallsTest, ACancelledJobGoesOnFromItsLastCheckpoint) {
  FakeWorker* w0 = AddWorker("w0", {.step_time = kStepTime});
  const auto id = Submit(LongSpec(200));
  ASSERT_TRUE(id.ok()) << id.status();
  AwaitStep(*id, 1);
  ASSERT_TRUE(Checkpoint(*id).ok());
  const int64_t step = AwaitCheckpoints(*id, 1).checkpoints(0).step();
  ASSERT_TRUE(Cancel(*id).ok());
  ASSERT_EQ(AwaitEnd(*id).state(), v1::JOB_STATE_CANCELLED);
  const auto resumed = Resume(*id);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->from_step(), step);
  EXPECT_EQ(AwaitState(*id, v1::JOB_STATE_DONE).steps_size(), 200);
  EXPECT_EQ(w0->assignment().start_step(), step);
  EXPECT_EQ(w0->assignment().weights_size(), 1);
}

TEST_F(CheckpointCallsTest, ANewJobBeginsFromAnothersCheckpointAndKeepsItsBlobs) {
  FakeWorker* w0 = AddWorker("w0", {.step_time = kStepTime, .checkpoint_every = 10});
  const auto first = Submit(LongSpec(25));
  ASSERT_TRUE(first.ok()) << first.status();
  const v1::Job trained = AwaitEnd(*first);
  ASSERT_EQ(trained.state(), v1::JOB_STATE_DONE) << trained.message();
  ASSERT_EQ(trained.checkpoints_size(), 2);
  EXPECT_EQ(SubmitFrom(LongSpec(50), "nobody", 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SubmitFrom(LongSpec(50), *first, 7).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SubmitFrom(LongSpec(20), *first, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto second = SubmitFrom(LongSpec(50), *first, 10);
  ASSERT_TRUE(second.ok()) << second.status();
  const v1::Job job = AwaitEnd(*second);
  ASSERT_EQ(job.state(), v1::JOB_STATE_DONE) << job.message();
  EXPECT_EQ(job.from_job(), *first);
  EXPECT_EQ(job.from_step(), 10);
  EXPECT_EQ(w0->assignment().start_step(), 10);
  ASSERT_EQ(w0->assignment().weights_size(), 1);
  EXPECT_EQ(w0->assignment().weights(0).sha256(), trained.checkpoints(0).slices(0).sha256());
  EXPECT_EQ(job.steps(0).step(), 11);
}

TEST_F(CheckpointCallsTest, ALostWorkersJobGoesOnElsewhereWhileItIsWatched) {
  FakeWorker* w0 = AddWorker("w0", {.step_time = kStepTime, .checkpoint_every = 10});
  const auto id = Submit(LongSpec(400));
  ASSERT_TRUE(id.ok()) << id.status();
  auto watch = std::async(std::launch::async, [&] { return Watch(*id); });
  AwaitCheckpoints(*id, 1);
  w0->Die();
  AwaitState(*id, v1::JOB_STATE_RECOVERING);
  FakeWorker* w1 = AddWorker("w1");
  const v1::Job job = AwaitState(*id, v1::JOB_STATE_DONE);
  EXPECT_EQ(job.steps_size(), 400);
  ASSERT_EQ(job.recoveries_size(), 1);
  EXPECT_EQ(job.recoveries(0).source(), "checkpoint");
  EXPECT_EQ(job.recoveries(0).from_step(), w1->assignment().start_step());
  EXPECT_GT(job.recoveries(0).loaded_unix_s(), job.recoveries(0).failed_unix_s());
  int64_t step = 0;
  for (const v1::WatchJobResponse& update : watch.get()) {
    if (update.has_step()) {
      EXPECT_EQ(update.step().step(), ++step);
    }
  }
  EXPECT_EQ(step, 400);
}

TEST_F(CheckpointCallsTest, NothingNewIsPlacedOnACordonedWorker) {
  AddWorker("w0");
  const auto cordoned = Cordon("w0", true);
  ASSERT_TRUE(cordoned.ok()) << cordoned.status();
  EXPECT_EQ(cordoned->job_id(), "");
  ASSERT_EQ(ListWorkers().size(), 1u);
  EXPECT_TRUE(ListWorkers()[0].cordoned());
  const auto id = Submit(Spec(1));
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(Get(*id).state(), v1::JOB_STATE_QUEUED);
  ASSERT_TRUE(Cordon("w0", false).ok());
  EXPECT_EQ(AwaitEnd(*id).state(), v1::JOB_STATE_DONE);
  EXPECT_EQ(Cordon("nobody", true).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Cordon("w0", false, /*drain=*/true).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointCallsTest, ADrainedWorkersJobMovesToAnother) {
  AddWorker("w0", {.step_time = kStepTime});
  const auto id = Submit(LongSpec(300));
  ASSERT_TRUE(id.ok()) << id.status();
  AwaitStep(*id, 2);
  FakeWorker* w1 = AddWorker("w1", {.step_time = kStepTime});
  const auto drained = Cordon("w0", true, /*drain=*/true);
  ASSERT_TRUE(drained.ok()) << drained.status();
  EXPECT_EQ(drained->job_id(), *id);
  const v1::Job job = AwaitState(*id, v1::JOB_STATE_DONE);
  EXPECT_EQ(job.steps_size(), 300);
  EXPECT_GT(w1->assignment().start_step(), 0);
}

}  // namespace
}  // namespace headrace
