#include "coordinator/job_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/job_view.h"
#include "coordinator/small_job.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

class JobOriginTest : public ::testing::Test {
 protected:
  JobOriginTest() {
    from_.job.set_id("j1");
    *from_.job.mutable_spec() = SmallJob("before", 2);
    for (const int64_t step : {10, 20, 30}) from_.job.add_checkpoints()->set_step(step);
    *request_.mutable_spec() = SmallJob("now", 3);
    request_.mutable_spec()->mutable_training()->set_steps(100);
    request_.set_from_job("j1");
  }
  std::string Refused() { return std::string(CheckOrigin(request_, from_).status().message()); }

  v1::SubmitJobRequest request_;
  StoredJob from_;
};

TEST_F(JobOriginTest, TakesTheLastSoundCheckpointOrTheOneOfAStep) {
  EXPECT_EQ(CheckOrigin(request_, from_)->step(), 30);
  from_.job.mutable_checkpoints(2)->set_damaged("layers 0 to 3: torn");
  EXPECT_EQ(CheckOrigin(request_, from_)->step(), 20);
  request_.set_from_step(10);
  EXPECT_EQ(CheckOrigin(request_, from_)->step(), 10);
  request_.set_from_step(30);
  EXPECT_THAT(Refused(), HasSubstr("step 30 of job j1 is damaged: layers 0 to 3: torn"));
  request_.set_from_step(15);
  EXPECT_THAT(Refused(), HasSubstr("no checkpoint of step 15; it has those of 10, 20"));
  request_.set_from_step(-1);
  EXPECT_THAT(Refused(), HasSubstr("from_step"));
  request_.set_from_step(0);
  from_.job.clear_checkpoints();
  EXPECT_EQ(Refused(), "job j1 has no checkpoint");
}

TEST_F(JobOriginTest, TheStateMustFitTheNewJob) {
  v1::JobSpec& spec = *request_.mutable_spec();
  spec.mutable_model()->set_resid_pdrop(0.5);
  spec.mutable_training()->set_micro_batches(1);
  EXPECT_EQ(Refused(), "") << "what is done with the weights may differ";
  spec.mutable_model()->set_n_layer(5);
  EXPECT_THAT(Refused(), HasSubstr("model: job j1"));
  spec = SmallJob("now", 3);
  spec.mutable_training()->set_steps(30);
  EXPECT_THAT(Refused(), HasSubstr("training.steps: 30, but the checkpoint is of step 30"));
  spec.mutable_training()->set_steps(31);
  EXPECT_EQ(Refused(), "");
  spec.mutable_training()->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  EXPECT_THAT(Refused(), HasSubstr("training.optimizer"));
  spec.mutable_training()->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
  request_.mutable_options()->set_simulate(true);
  EXPECT_THAT(Refused(), HasSubstr("was trained"));
  from_.options.set_simulate(true);
  EXPECT_EQ(Refused(), "");
  request_.mutable_options()->set_simulate(false);
  EXPECT_THAT(Refused(), HasSubstr("was simulated"));
}

// A checkpoint kept for good every few steps of a long job: GetJob must still fit a message.
TEST(JobViewTest, AJobOfVeryManyCheckpointsFitsAMessage) {
  v1::Job job;
  for (int64_t step = 1; step <= 5000; ++step) {
    v1::Checkpoint* checkpoint = job.add_checkpoints();
    checkpoint->set_step(step);
    for (int i = 0; i < 32; ++i) checkpoint->add_slices()->set_sha256(std::string(64, 'a'));
  }
  job.mutable_checkpoints(4999)->set_damaged("torn");
  ASSERT_GT(job.ByteSizeLong(), size_t{8} << 20);
  TrimForReader(&job);
  EXPECT_LT(job.ByteSizeLong(), size_t{2} << 20);
  EXPECT_EQ(job.checkpoints_size(), 5000);
  EXPECT_EQ(job.checkpoints(4998).slices_size(), 32) << "the last sound one";
  TrimForWatcher(&job);
  EXPECT_EQ(job.checkpoints(4998).slices_size(), 0);
  v1::Job small;
  small.add_checkpoints()->add_slices()->set_sha256("a");
  TrimForReader(&small);
  EXPECT_EQ(small.checkpoints(0).slices_size(), 1);
}

}  // namespace
}  // namespace headrace
