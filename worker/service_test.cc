// A stage's life on a worker: trained to its end, and stopped in each phase.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/span.h"
#include "worker/worker_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST_F(WorkerServiceTest, TwoWorkersTrainAJobOverTheirLinksAsOneDoesAlone) {
  const v1::StageAssignment alone = Job(0, 1, 3);
  ASSERT_TRUE(workers_[0]->Assign(alone).ok());
  coordinator_.AwaitReady(0);
  ASSERT_TRUE(workers_[0]->Start(alone).ok());
  const auto payload = [](const std::string& slice) {
    uint64_t header = 0;
    std::memcpy(&header, slice.data(), 8);
    return slice.substr(8 + header);
  };
  const std::string whole =
      payload(coordinator_.Get(coordinator_.AwaitFinished(0).weights().sha256()));

  v1::StageAssignment both[2] = {Job(0, 2, 3), Job(1, 2, 3)};
  for (int k = 0; k < 2; ++k) {
    both[k].set_job_id("j2");
    ASSERT_TRUE(workers_[k]->Assign(both[k]).ok());
  }
  const auto of_j2 = [](const v1::StageEvent& e) { return e.job_id() == "j2"; };
  for (int k = 0; k < 2; ++k) {
    coordinator_.Await(
        [&](const v1::StageEvent& e) { return of_j2(e) && e.has_ready() && e.stage() == k; });
  }
  for (int k = 0; k < 2; ++k) ASSERT_TRUE(workers_[k]->Start(both[k]).ok());
  std::string parts;
  for (int k = 0; k < 2; ++k) {
    const v1::StageEvent end = coordinator_.Await([&](const v1::StageEvent& e) {
      return of_j2(e) && e.stage() == k && (e.has_finished() || e.has_failed());
    });
    ASSERT_TRUE(end.has_finished()) << end.failed().reason();
    EXPECT_EQ(end.finished().weights_step(), 3);
    parts += payload(coordinator_.Get(end.finished().weights().sha256()));
  }
  EXPECT_FALSE(whole.empty());
  EXPECT_TRUE(parts == whole);
}

TEST_F(WorkerServiceTest, AStageTellsWhatItDidInEachStep) {
  const v1::StageAssignment assignment = Job(0, 1, 2);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
  ASSERT_TRUE(workers_[0]->Start(assignment).ok());
  const v1::StageEvent event = coordinator_.Await(
      [](const v1::StageEvent& e) { return e.has_step() && e.step().step() == 2; });
  const absl::StatusOr<std::vector<Span>> spans = UnpackSpans(event.trace());
  ASSERT_TRUE(spans.ok()) << spans.status();
  std::map<v1::SpanKind, int> did;
  for (const Span& span : *spans) {
    EXPECT_EQ(span.step, 2);
    ++did[span.kind];
  }
  EXPECT_EQ(did[v1::SPAN_KIND_FORWARD], 2);
  EXPECT_EQ(did[v1::SPAN_KIND_RECOMPUTE], 2);
  EXPECT_EQ(did[v1::SPAN_KIND_BACKWARD], 2);
  EXPECT_EQ(did[v1::SPAN_KIND_OPTIMIZER], 1);
  EXPECT_FALSE(event.trace().has_clock_offset_ns()) << "there are no heartbeats here";
}

// Found by tests/chaos/run: three generations whose uploads were refused within a second failed a
// job that had done all its steps, while the coordinator's disk was full for three.
TEST_F(WorkerServiceTest, AStageThatHasDoneAllStepsWaitsForRoomForItsWeights) {
  const v1::StageAssignment assignment = Job(0, 1, 2);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
  coordinator_.BeFullFor(2);
  ASSERT_TRUE(workers_[0]->Start(assignment).ok());
  const v1::StageEvent end = coordinator_.Await(
      [](const v1::StageEvent& e) { return e.has_finished() || e.has_failed(); });
  ASSERT_TRUE(end.has_finished()) << end.failed().reason();
  EXPECT_FALSE(coordinator_.Get(end.finished().weights().sha256()).empty());
  coordinator_.Await([](const v1::StageEvent& e) {
    return e.log().find("the disk is full; trying again") != std::string::npos;
  });
}

TEST_F(WorkerServiceTest, StopEndsAStageThatFetchesItsData) {
  coordinator_.Stall();
  const v1::StageAssignment assignment = Job(0, 1, 1);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  ASSERT_TRUE(coordinator_.AwaitDownload());
  const v1::FlightRecord record = StopAndReuse(assignment);
  EXPECT_THAT(record.entries(record.entries_size() - 1), HasSubstr("fetching blob"));
}

TEST_F(WorkerServiceTest, StopEndsAReadyStage) {
  const v1::StageAssignment assignment = Job(0, 1, 1);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
  StopAndReuse(assignment);
}

TEST_F(WorkerServiceTest, StopEndsAStageThatComputes) {
  const v1::StageAssignment assignment = Job(0, 1, 1'000'000);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
  ASSERT_TRUE(workers_[0]->Start(assignment).ok());
  coordinator_.Await([](const v1::StageEvent& e) { return e.has_step(); });
  StopAndReuse(assignment);
}

TEST_F(WorkerServiceTest, StopEndsAStageThatWaitsForAnother) {
  // Stage 1 takes in what stage 0 sends and never answers.
  v1::StageAssignment first = Job(0, 2, 1), second = Job(1, 2, 1);
  const StageJob silent_job = *CheckAssignment(second, {int64_t{1} << 30, 1});
  const auto silent = *StageEquipment::Create(&silent_job);
  StageDirectory directory;
  GrpcStageService service(&directory);
  const std::string address = absl::StrCat("unix:", dir_ / "silent");
  grpc::ServerBuilder builder;
  int port = 0;
  ASSERT_TRUE(AddListener(&builder, address, &port).ok());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  directory.Enter({"j1", 1, 1, 2}, silent->inbox());

  first.mutable_peers(1)->set_address(address);
  ASSERT_TRUE(workers_[0]->Assign(first).ok());
  coordinator_.AwaitReady(0);
  ASSERT_TRUE(workers_[0]->Start(first).ok());
  Tag tag;
  tag.kind = v1::MESSAGE_KIND_ACTIVATION;
  tag.step = 1;
  tag.chunk = 1;
  tag.micro_batch = 1;
  ASSERT_TRUE(silent->inbox()->Take(tag, absl::Now() + kPatience).ok());
  // Both activations have come: nothing is left to stage 0 but to wait for a gradient.
  const v1::FlightRecord record = StopAndReuse(first);
  EXPECT_THAT(
      record.entries(record.entries_size() - 1),
      ::testing::AnyOf(HasSubstr("sending the activation to stage 1"), HasSubstr("recompute"),
                       HasSubstr("waiting for the gradient from stage 1 (worker w1)")));
  directory.Leave("j1", 1);
  server->Shutdown(std::chrono::system_clock::now());
}

// A worker that answered OK after 800 ms whatever had become of the stage was given the next job
// and refused it.
TEST_F(WorkerServiceTest, AStageThatCannotEndInTimeKeepsTheWorkerBusyUntilItHas) {
  // Reading a FIFO that nobody writes to cannot be interrupted: a disk that hangs.
  const std::string hung = Sha256Hex("hung"), next = Sha256Hex("not weights");
  const std::string blobs = dir_ / "w0-data/blobs/";
  ASSERT_TRUE(MakeDirectories(blobs).ok());
  ASSERT_EQ(mkfifo((blobs + hung).c_str(), 0600), 0);
  coordinator_.Put(next, "not weights");
  v1::StageAssignment assignment = Job(0, 1, 1);
  for (const std::string& sha256 : {hung, next}) {
    v1::WeightsSlice* slice = assignment.add_weights();
    slice->set_sha256(sha256);
    slice->set_size_bytes(11);
    slice->set_end_layer(4);
  }
  v1::StopStageResponse stopped;
  const absl::Time deadline = absl::Now() + kPatience;
  do {  // again, if Stop came before the stage had gone from fetching to loading
    assignment.set_generation(assignment.generation() + 1);
    ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
    while (access((blobs + next).c_str(), F_OK) != 0) ASSERT_LT(absl::Now(), deadline);
    stopped = workers_[0]->StopStage(assignment);
    std::remove((blobs + next).c_str());
  } while (!stopped.busy() && absl::Now() < deadline);
  ASSERT_TRUE(stopped.busy());

  const v1::HeartbeatRequest beat = workers_[0]->Heartbeat();
  EXPECT_EQ(beat.job_id(), "j1");
  EXPECT_GT(beat.number(), stopped.last_heartbeat());
  v1::StageAssignment other = Job(0, 1, 1);
  other.set_job_id("j2");
  EXPECT_TRUE(workers_[0]->StopStage(other).busy()) << "whichever job is stopped";
  EXPECT_EQ(workers_[0]->Assign(other).error_code(), grpc::StatusCode::FAILED_PRECONDITION);

  // One that comes while the stage is just ending waits for it.
  grpc::Status assigned;
  std::thread assign([&] { assigned = workers_[0]->Assign(other); });
  close(open((blobs + hung).c_str(), O_WRONLY | O_CLOEXEC));
  assign.join();
  EXPECT_TRUE(assigned.ok()) << assigned.error_message();
  EXPECT_EQ(workers_[0]->Current(), "j2");
  EXPECT_TRUE(workers_[0]->StopStage(assignment).busy()) << "with another job";
  EXPECT_FALSE(workers_[0]->StopStage(other).busy());
}

TEST_F(WorkerServiceTest, AWorkerToldToStopSaysSoBlamesNobodyAndTakesNoOtherJob) {
  const v1::StageAssignment assignment = Job(0, 1, 1'000'000);
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
  ASSERT_TRUE(workers_[0]->Start(assignment).ok());
  coordinator_.Await([](const v1::StageEvent& e) { return e.has_step(); });
  ASSERT_TRUE(workers_[0]->Close("the worker was told to stop"));
  const v1::StageFailed failed =
      coordinator_.Await([](const v1::StageEvent& e) { return e.has_failed(); }).failed();
  EXPECT_THAT(failed.reason(), HasSubstr("worker w0, stage 0, step "));
  EXPECT_THAT(failed.reason(), HasSubstr(": the worker was told to stop"));
  EXPECT_EQ(failed.blamed_worker(), "");
  EXPECT_TRUE(workers_[0]->StopStage(assignment).busy()) << "so that nothing is placed here";
  v1::StageAssignment other = assignment;
  other.set_job_id("j2");
  EXPECT_EQ(workers_[0]->Assign(other).error_message(), "worker w0 is ending");
}

}  // namespace
}  // namespace headrace
