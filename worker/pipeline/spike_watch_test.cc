#include "worker/pipeline/spike_watch.h"

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
  SpikeWatch watch(2, std::vector<double>(7, 1000));
  for (int i = 0; i < 20; ++i) watch.Add(1);
  EXPECT_TRUE(watch.IsSpike(2.5));
}

TEST(SpikeWatchTest, WithoutAFactorNothingIsASpike) {
  const SpikeWatch watch(0, {1, 1, 1, 1, 1});
  EXPECT_FALSE(watch.IsSpike(1e9));
}

}  // namespace
}  // namespace headrace
