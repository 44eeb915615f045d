// A worker measures layers where no stage is, and makes room for one at once.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
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
#include "worker/worker_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// A request to measure layers of `spec`, on its way to a worker.
class Profile {
 public:
  Profile(const InProcessWorker& worker, const v1::JobSpec& spec, int repeats = 1)
      : stub_(v1::StageService::NewStub(MakeChannel(worker.address(), ChannelUse::kControl))) {
    request_.set_job_id("j1");
    *request_.mutable_spec() = spec;
    request_.mutable_spec()->set_name("measured");
    request_.mutable_spec()->mutable_data()->set_text("x");
    request_.mutable_spec()->mutable_data()->set_tokenizer(v1::TOKENIZER_BYTE);
    for (int i = 0; i < repeats; ++i) request_.add_layers(1);
    request_.set_budget_ms(60'000);
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    stub_->async()->ProfileLayers(&context_, &request_, &response_,
                                  [this](const grpc::Status& status) {
                                    absl::MutexLock lock(&mu_);
                                    status_ = status;
                                    done_ = true;
                                  });
  }
  ~Profile() {
    Cancel();
    Await();
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Await() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&done_));
    return status_;
  }
  const v1::ProfileLayersResponse& response() const { return response_; }

 private:
  std::unique_ptr<v1::StageService::Stub> stub_;
  grpc::ClientContext context_;
  v1::ProfileLayersRequest request_;
  v1::ProfileLayersResponse response_;
  absl::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

TEST_F(WorkerServiceTest, MeasuresLayersUnlessAStageIsHere) {
  const v1::StageAssignment assignment = Job(0, 1, 1);
  {
    Profile profile(*workers_[0], assignment.spec());
    const grpc::Status status = profile.Await();
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(profile.response().profiles_size(), 1);
    EXPECT_GT(profile.response().profiles(0).seconds().forward_s(), 0);
  }
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  {
    Profile profile(*workers_[0], assignment.spec());
    EXPECT_EQ(profile.Await().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(profile.Await().error_message(), HasSubstr("is busy with job j1"));
  }
  workers_[0]->Stop(assignment);
  Profile profile(*workers_[0], assignment.spec());
  EXPECT_TRUE(profile.Await().ok()) << profile.Await().error_message();
}

TEST_F(WorkerServiceTest, AWorkerThatDeclaresItsSpeedDoesNotMeasure) {
  const InProcessWorker declares("w2", workers_[0]->address(), dir_, /*measures=*/false);
  Profile profile(declares, Job(0, 1, 1).spec());
  EXPECT_EQ(profile.Await().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(profile.Await().error_message(), HasSubstr("does not measure layers"));
}

// The coordinator does not wait for the pass of a layer that is under way when it cancels.
TEST_F(WorkerServiceTest, AStageMayComeWhileACancelledMeasurementIsStillEnding) {
  const v1::StageAssignment assignment = Job(0, 1, 1);
  v1::JobSpec large = assignment.spec();
  large.mutable_model()->set_n_embd(512);
  large.mutable_model()->set_n_positions(512);
  large.mutable_training()->set_sequence_length(512);
  Profile profile(*workers_[0], large, 16);
  Profile second(*workers_[0], large, 16);  // only one at a time
  grpc::Status status = second.Await();
  if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) status = profile.Await();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  profile.Cancel();
  second.Cancel();
  ASSERT_TRUE(workers_[0]->Assign(assignment).ok());
  coordinator_.AwaitReady(0);
}

TEST_F(WorkerServiceTest, TheEndOfTheProcessEndsAMeasurement) {
  v1::JobSpec large = Job(0, 1, 1).spec();
  large.mutable_model()->set_n_embd(256);
  large.mutable_model()->set_n_positions(256);
  large.mutable_training()->set_sequence_length(256);
  Profile profile(*workers_[0], large, 16);
  EXPECT_TRUE(workers_[0]->Close("the worker was told to stop"));
  EXPECT_FALSE(profile.Await().ok());
}

}  // namespace
}  // namespace headrace
