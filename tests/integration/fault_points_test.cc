// A worker that dies, or fails, at each place where a job's state changes: the job is done all the
// same, with the very numbers. And what is not the worker's end: slow places, full disks.
#include <signal.h>

#include "tests/integration/survival_fixture.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct PointCase {
  const char* fault;  // at the worker that is to serve stage 0 or 1
  bool ends = true;   // the process
};

void PrintTo(const PointCase& each, std::ostream* out) { *out << each.fault; }

class FaultPointTest : public SurvivalTest, public testing::WithParamInterface<PointCase> {
 protected:
  static void SetUpTestSuite() {
    std::vector<WorkerOptions> workers = SlowWorkers(2);
    StartCluster(workers);
  }
  int num_workers() const override { return 2; }

  void StartFaulty(const std::string& worker, const std::string& fault) {
    ASSERT_TRUE(cluster_->Terminate(worker).ok());
    ASSERT_TRUE(cluster_->RestartWorker(worker, {absl::StrCat(kSlowSteps, ",", fault)}).ok());
    ASSERT_TRUE(cluster_->WaitForFreeWorkers(2).ok());
  }
};

TEST_P(FaultPointTest, TheJobIsDoneAllTheSame) {
  StartFaulty("w1", GetParam().fault);
  TinyJob job = SurvivingJob(2, "  every_steps: 4\n  replicate: neighbour\n  replicate_every: 2\n");
  job.steps = 16;
  const std::string id = Submit(job);
  if (GetParam().ends) {
    const auto code = cluster_->process("w1").Wait(absl::Now() + absl::Seconds(20));
    ASSERT_TRUE(code.ok()) << "the point was never passed";
    ASSERT_TRUE(cluster_->RestartWorker("w1", {kSlowSteps}).ok());
  }
  const nlohmann::json done = AwaitDone(id);
  EXPECT_EQ(OutcomeOf(done), Undisturbed(job));
  EXPECT_THAT(cluster_->Log("w1"), HasSubstr("fault point"));
  EXPECT_THAT(Events(id), Not(HasSubstr("differs when replayed")));
}
INSTANTIATE_TEST_SUITE_P(Kill, FaultPointTest,
                         testing::Values(PointCase{"assign:kill"}, PointCase{"load:kill"},
                                         PointCase{"connect:kill"}, PointCase{"step_start:kill:7"},
                                         PointCase{"mid_forward:kill:20"},
                                         PointCase{"mid_backward:kill:20"},
                                         PointCase{"reduce:kill:7"}, PointCase{"optimizer:kill:7"},
                                         PointCase{"snapshot:kill:3"}));
INSTANTIATE_TEST_SUITE_P(
    Error, FaultPointTest,
    testing::Values(PointCase{"assign:error", false}, PointCase{"load:error", false},
                    PointCase{"connect:error", false}, PointCase{"mid_forward:error:20", false},
                    PointCase{"optimizer:error:7", false}, PointCase{"snapshot:full:2+", false},
                    PointCase{"mid_backward:abort:20"}, PointCase{"reduce:delay=700ms:5", false}));

TEST_F(FaultPointTest, AFaultOfItsOwnThatComesBackEndsTheJobInASentence) {
  StartFaulty("w0", "optimizer:full:3+");
  StartFaulty("w1", "optimizer:full:3+");
  TinyJob job = SurvivingJob(1, "  replicate: off\n");
  job.steps = 16;
  const auto ended = cluster_->WaitForEnd(Submit(job), absl::Seconds(40));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(ended->message(), HasSubstr("no space left on device"));
}

}  // namespace
}  // namespace headrace
