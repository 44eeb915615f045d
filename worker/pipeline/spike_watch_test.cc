#include "worker/pipeline/spike_watch.h"

#include <vector>

#include "gtest/gtest.h"

namespace headrace {
namespace {

TEST(SpikeWatchTest, ComparesWithTheMean) {
  const SpikeWatch watch(2, {1, 2, 3, 4, 5});
  EXPECT_FALSE(watch.IsSpike(6));
  EXPECT_TRUE(watch.IsSpike(6.001));
  EXPECT_EQ(watch.Describe(7, 9),
            "the loss of step 7 is 9, 3 times the mean of the 5 steps before");
}

TEST(SpikeWatchTest, SaysNothingOfTheFirstSteps) {
  SpikeWatch watch(2, {1, 1, 1, 1});
  EXPECT_FALSE(watch.IsSpike(100));
  watch.Add(1);
  EXPECT_TRUE(watch.IsSpike(100));
}

TEST(SpikeWatchTest, ForgetsAllButTheLastTwenty) {
  std::vector<double> losses(20, 1);
  losses[0] = 101;  // the mean is 6
  SpikeWatch watch(2, losses);
  EXPECT_FALSE(watch.IsSpike(11));
  watch.Add(1);
  EXPECT_TRUE(watch.IsSpike(11));
}

TEST(SpikeWatchTest, WithoutAFactorNothingIsASpike) {
  const SpikeWatch watch(0, {1, 1, 1, 1, 1});
  EXPECT_FALSE(watch.IsSpike(1e9));
}

}  // namespace
}  // namespace headrace
