#include <gtest/gtest.h>

#include "worker/optimizer/optimizer.h"

namespace headrace {
namespace {

v1::TrainingSpec Training(v1::LearningRateKind kind, int64_t warmup, int64_t steps,
                          double minimum = 0) {
  v1::TrainingSpec training;
  training.set_steps(steps);
  training.mutable_optimizer()->set_learning_rate(0.8);
  training.mutable_learning_rate()->set_kind(kind);
  training.mutable_learning_rate()->set_warmup_steps(warmup);
  training.mutable_learning_rate()->set_min_learning_rate(minimum);
  return training;
}

struct Case {
  v1::LearningRateKind kind;
  int64_t warmup, steps;
  double minimum;
  int64_t step;
  double rate;  // by hand, of a full rate of 0.8
};

TEST(LearningRateTest, IsWhatAHandComputes) {
  constexpr auto kConstant = v1::LEARNING_RATE_KIND_CONSTANT;
  constexpr auto kLinear = v1::LEARNING_RATE_KIND_LINEAR;
  constexpr auto kCosine = v1::LEARNING_RATE_KIND_COSINE;
  constexpr auto kInverse = v1::LEARNING_RATE_KIND_INVERSE_SQRT;
  const Case cases[] = {
      {v1::LEARNING_RATE_KIND_UNSPECIFIED, 0, 10, 0, 7, 0.8},
      {kConstant, 0, 10, 0, 1, 0.8},
      {kConstant, 0, 10, 0, 10, 0.8},
      {kConstant, 4, 10, 0, 1, 0.2},
      {kConstant, 4, 10, 0, 3, 0.6},
      {kConstant, 4, 10, 0, 4, 0.8},
      {kConstant, 4, 10, 0, 5, 0.8},
      // 4 steps of warm-up, then 8 of decline from 0.8 to 0.4.
      {kLinear, 4, 12, 0.4, 1, 0.2},
      {kLinear, 4, 12, 0.4, 4, 0.8},
      {kLinear, 4, 12, 0.4, 6, 0.7},
      {kLinear, 4, 12, 0.4, 8, 0.6},
      {kLinear, 4, 12, 0.4, 12, 0.4},
      {kLinear, 0, 5, 0, 1, 0.8},
      {kLinear, 0, 5, 0, 3, 0.4},
      {kLinear, 0, 5, 0, 5, 0},
      {kCosine, 4, 12, 0.4, 2, 0.4},
      {kCosine, 4, 12, 0.4, 4, 0.8},
      {kCosine, 4, 12, 0.4, 6, 0.6 + 0.2 * 0.7071067811865476},  // cos 45°
      {kCosine, 4, 12, 0.4, 8, 0.6},
      {kCosine, 4, 12, 0.4, 12, 0.4},
      {kCosine, 0, 5, 0, 1, 0.8},
      {kCosine, 0, 5, 0, 5, 0},
      {kInverse, 4, 100, 0, 1, 0.2},
      {kInverse, 4, 100, 0, 4, 0.8},
      {kInverse, 4, 100, 0, 16, 0.4},
      {kInverse, 4, 100, 0, 100, 0.16},
      {kInverse, 0, 100, 0, 1, 0.8},
      {kInverse, 0, 100, 0, 100, 0.08},
      // Warm-up as long as the job, and longer: never a decline, never a division by nothing.
      {kLinear, 10, 10, 0.4, 10, 0.8},
      {kCosine, 20, 10, 0.4, 10, 0.4},
      {kInverse, 20, 10, 0, 5, 0.2},
      // A job of one step takes it at the full rate.
      {kLinear, 0, 1, 0, 1, 0.8},
      {kCosine, 1, 1, 0, 1, 0.8},
  };
  for (const Case& c : cases) {
    EXPECT_NEAR(LearningRate(Training(c.kind, c.warmup, c.steps, c.minimum), c.step), c.rate, 1e-15)
        << v1::LearningRateKind_Name(c.kind) << ", warm-up " << c.warmup << " of " << c.steps
        << " steps, step " << c.step;
  }
}

}  // namespace
}  // namespace headrace
