#include "coordinator/suited_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using ::testing::HasSubstr;

std::vector<v1::WorkerInfo> Workers(int real, int simulated) {
  std::vector<v1::WorkerInfo> workers(real + simulated);
  for (int i = 0; i < simulated; ++i) workers[real + i].mutable_sim()->set_flops_per_second(1e9);
  return workers;
}

TEST(SuitedWorkersTest, AJobHasRealOrSimulatedWorkersNeverBoth) {
  EXPECT_EQ(SuitedWorkers(Workers(2, 3), false).size(), 2u);
  EXPECT_EQ(SuitedWorkers(Workers(2, 3), true).size(), 3u);
  for (const v1::WorkerInfo& worker : SuitedWorkers(Workers(2, 3), true)) {
    EXPECT_TRUE(worker.has_sim());
  }
}

TEST(SuitedWorkersTest, SaysWhatToDoWhereAllAreOfTheOtherKind) {
  EXPECT_TRUE(CheckSuited(Workers(1, 1), true).ok());
  EXPECT_TRUE(CheckSuited(Workers(1, 1), false).ok());
  EXPECT_TRUE(CheckSuited({}, true).ok());  // it can wait
  EXPECT_TRUE(CheckSuited({}, false).ok());
  const absl::Status simulated = CheckSuited(Workers(0, 8), false);
  EXPECT_TRUE(absl::IsFailedPrecondition(simulated));
  EXPECT_THAT(simulated.ToString(), HasSubstr("all 8 workers are simulated"));
  EXPECT_THAT(simulated.ToString(), HasSubstr("--simulate"));
  const absl::Status real = CheckSuited(Workers(1, 0), true);
  EXPECT_TRUE(absl::IsFailedPrecondition(real));
  EXPECT_THAT(real.ToString(), HasSubstr("the one worker there is is real"));
  EXPECT_THAT(real.ToString(), HasSubstr("--device sim:"));
}

}  // namespace
}  // namespace headrace
