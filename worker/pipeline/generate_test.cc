#include "worker/pipeline/generate.h"

#include <cmath>
#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace headrace {
namespace {

RandomStream Stream(uint32_t index) { return MakeStream(7, RandomPurpose::kGenerate, index, 0, 0); }

TEST(DrawToken, TakesTheLargestLogitAtTemperatureZero) {
  EXPECT_EQ(DrawToken({0.5f, 3.0f, -1.0f, 3.0f}, 0, 0, Stream(0)), 1);
}

TEST(DrawToken, TakesTheLargestLogitWithTopOne) {
  for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(DrawToken({0.5f, 2.0f, 1.9f}, 10, 1, Stream(i)), 1);
}

TEST(DrawToken, NeverLeavesTheTopK) {
  for (uint32_t i = 0; i < 500; ++i) {
    const int32_t token = DrawToken({5.0f, 4.9f, 4.8f, 4.7f}, 2, 2, Stream(i));
    EXPECT_LT(token, 2) << "draw " << i;
  }
}

TEST(DrawToken, FollowsTheSoftmaxOfTheLogitsOverTheTemperature) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f};
  const double temperature = 0.7;
  constexpr int kDraws = 20000;
  std::map<int32_t, int> counts;
  for (uint32_t i = 0; i < kDraws; ++i) ++counts[DrawToken(logits, temperature, 0, Stream(i))];
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit / temperature);
  for (int32_t t = 0; t < 3; ++t) {
    const double p = std::exp(logits[t] / temperature) / sum;
    // Four standard deviations of a binomial share.
    EXPECT_NEAR(counts[t] / double{kDraws}, p, 4 * std::sqrt(p * (1 - p) / kDraws))
        << "token " << t;
  }
}

TEST(DrawToken, DependsOnNothingButItsArguments) {
  const std::vector<float> logits = {0.1f, 0.2f, 0.3f, 0.25f};
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(DrawToken(logits, 1, 0, Stream(i)), DrawToken(logits, 1, 0, Stream(i)));
  }
}

}  // namespace
}  // namespace headrace
