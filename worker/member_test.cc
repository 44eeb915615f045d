// A worker as a member of a cluster: asked for checkpoints, given neighbours' slices, left alone by
// its coordinator, told to leave.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/slice_transfer.h"
#include "worker/worker_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class MemberTest : public WorkerServiceTest {
 protected:
  // A stage of one of worker 0 that trains on, or waits to be started.
  v1::StageAssignment Serve(bool start, double coordinator_timeout_s = 600) {
    v1::StageAssignment assignment = Job(0, 1, 1'000'000);
    assignment.mutable_spec()->mutable_recovery()->set_coordinator_timeout_s(coordinator_timeout_s);
    EXPECT_TRUE(workers_[0]->Assign(assignment).ok());
    coordinator_.AwaitReady(0);
    if (start) {
      EXPECT_TRUE(workers_[0]->Start(assignment).ok());
      coordinator_.Await([](const v1::StageEvent& e) { return e.has_step(); });
    }
    return assignment;
  }
  absl::Status Send(const std::string& content, const std::string& job_id, int64_t generation) {
    EXPECT_TRUE(WriteFileAtomically(dir_ / "slice", content).ok());
    const auto stub =
        v1::StageService::NewStub(MakeChannel(workers_[0]->address(), ChannelUse::kTensors));
    return SendSlice(stub.get(), job_id, generation, 5, Sha256Hex(content), dir_ / "slice",
                     absl::Now() + kPatience, nullptr);
  }
};

TEST_F(MemberTest, OnlyStageZeroOfTheJobAndGenerationIsControlled) {
  v1::StageAssignment other = Serve(true);
  EXPECT_TRUE(workers_[0]->Control(other).ok());
  other.set_generation(2);
  EXPECT_EQ(workers_[0]->Control(other).error_code(), grpc::StatusCode::NOT_FOUND);
  other.set_generation(1);
  other.set_job_id("j2");
  EXPECT_EQ(workers_[0]->Control(other).error_code(), grpc::StatusCode::NOT_FOUND);

  const v1::StageAssignment last = Job(1, 2, 1);
  ASSERT_TRUE(workers_[1]->Assign(last).ok());
  coordinator_.AwaitReady(1);
  EXPECT_EQ(workers_[1]->Control(last).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  workers_[1]->Stop(last);
  EXPECT_EQ(workers_[1]->Control(last).error_code(), grpc::StatusCode::NOT_FOUND) << "it has ended";
}

TEST_F(MemberTest, ANeighboursSliceIsKeptToldOfAndHandedOut) {
  Serve(false);
  const absl::Status sent = Send("a neighbour's state", "j1", 1);
  ASSERT_TRUE(sent.ok()) << sent;
  const v1::RegisterWorkerRequest registration = workers_[0]->Registration();
  ASSERT_THAT(registration.held(), SizeIs(1));
  EXPECT_EQ(registration.held(0).step(), 5);
  EXPECT_EQ(registration.held(0).sha256(), Sha256Hex("a neighbour's state"));

  v1::WeightsSlice slice;
  slice.set_sha256(registration.held(0).sha256());
  slice.set_size_bytes(19);
  slice.add_holder_addresses(workers_[0]->address());
  const auto fetched =
      FetchSlice(slice, "j1", 5, workers_[1]->slices(), nullptr, absl::Now() + kPatience, nullptr);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(*ReadFile(*fetched), "a neighbour's state");

  v1::SliceLimit limit;
  limit.set_job_id("j1");
  limit.set_before_step(6);
  workers_[0]->service()->Drop(limit);
  EXPECT_THAT(workers_[0]->Registration().held(), SizeIs(0));
}

TEST_F(MemberTest, ASliceOfAStaleGenerationIsRefused) {
  Serve(false);
  EXPECT_EQ(Send("stale", "j1", 2).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Send("stale", "j2", 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(workers_[0]->slices()->Held(), SizeIs(0));
}

TEST_F(MemberTest, AStageTrainsOnWithoutItsCoordinatorAndSaysWhereItStands) {
  Serve(true);
  workers_[0]->service()->CoordinatorAway("head:7070", absl::Seconds(599));
  const int64_t stood = workers_[0]->Registration().standing().step();
  EXPECT_GE(stood, 1);
  coordinator_.Await(
      [&](const v1::StageEvent& e) { return e.has_step() && e.step().step() > stood + 1; });
  const v1::StageStanding standing = workers_[0]->Registration().standing();
  EXPECT_EQ(standing.job_id(), "j1");
  EXPECT_EQ(standing.generation(), 1);
  EXPECT_GT(standing.step(), stood);

  workers_[0]->service()->CoordinatorAway("head:7070", absl::Seconds(601));
  const v1::StageFailed failed =
      coordinator_.Await([](const v1::StageEvent& e) { return e.has_failed(); }).failed();
  EXPECT_THAT(failed.reason(),
              HasSubstr("lost the coordinator at head:7070: no answer for 601.0 s"));
  EXPECT_EQ(failed.blamed_worker(), "");
}

// Nobody would ever start it.
TEST_F(MemberTest, AStageThatIsNotStartedEndsWithItsCoordinator) {
  Serve(false);
  workers_[0]->service()->CoordinatorAway("head:7070", absl::Seconds(3));
  const v1::StageFailed failed =
      coordinator_.Await([](const v1::StageEvent& e) { return e.has_failed(); }).failed();
  EXPECT_THAT(failed.reason(), HasSubstr("lost the coordinator"));
}

TEST_F(MemberTest, AWorkerThatIsToLeaveSaysSoAndTakesNothingNew) {
  const v1::StageAssignment assignment = Serve(true);
  EXPECT_FALSE(workers_[0]->Heartbeat().draining());
  workers_[0]->service()->Drain();
  EXPECT_TRUE(workers_[0]->Heartbeat().draining());
  EXPECT_EQ(workers_[0]->Current(), "j1") << "what it has goes on";
  EXPECT_TRUE(workers_[0]->service()->serving());
  EXPECT_TRUE(workers_[0]->Control(assignment, true).ok());
  EXPECT_TRUE(workers_[0]->StopStage(assignment).busy()) << "so that nothing is placed here";
  EXPECT_FALSE(workers_[0]->service()->serving());
  v1::StageAssignment other = assignment;
  other.set_generation(2);
  EXPECT_EQ(workers_[0]->Assign(other).error_message(), "worker w0 is leaving");
}

}  // namespace
}  // namespace headrace
