#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

class CrossEntropy : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Ops> ops_ = CreateCpuOps(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, CrossEntropy, ::testing::Values(1, 2));

double Reference(const Doubles& logits, const std::vector<int32_t>& targets, int64_t vocabulary) {
  double loss = 0;
  for (size_t t = 0; t < targets.size(); ++t) {
    const double* row = logits.data() + static_cast<int64_t>(t) * vocabulary;
    const double max = *std::max_element(row, row + vocabulary);
    double sum = 0;
    for (int64_t j = 0; j < vocabulary; ++j) sum += std::exp(row[j] - max);
    loss += std::log(sum) + max - row[targets[t]];
  }
  return loss;
}

TEST_P(CrossEntropy, LossMatchesDoubleLoops) {
  for (int64_t vocabulary : {1, 2, 31, 32, 33, 257, 1023, 1024, 1025, 50257}) {
    for (int64_t n : {1, 3}) {
      for (double range : {1.0, 30.0}) {
        const Doubles logits = RandomValues(n * vocabulary, 1, range);
        const auto targets = RandomIds(n, 2, vocabulary);
        Buffer f(logits);
        const double want = Reference(logits, targets, vocabulary);
        EXPECT_NEAR(LossOf(*ops_, f.data(), targets.data(), n, vocabulary), want,
                    3e-7 * want + 1e-9 + 2e-7 * static_cast<double>(n))
            << "vocabulary " << vocabulary << " n " << n << " range " << range;
      }
    }
  }
}

TEST_P(CrossEntropy, BackwardMatchesFiniteDifferences) {
  for (int64_t vocabulary : {1, 2, 33, 101, 1025}) {
    const int64_t n = 3;
    const float scale = 0.125f;
    const Doubles logits = RandomValues(n * vocabulary, 1, 3);
    const auto targets = RandomIds(n, 2, vocabulary);
    Buffer f(logits);
    const double loss = LossOf(*ops_, f.data(), targets.data(), n, vocabulary);
    double added = 0.5;
    ops_->CrossEntropyBackward(f.data(), targets.data(), &added, n, vocabulary, scale);
    EXPECT_EQ(added, 0.5 + loss);
    const Doubles want = NumericGradient(
        [&](const Doubles& v) { return scale * Reference(v, targets, vocabulary); }, logits);
    // The differences are off by 1e-10 of the loss.
    for (int64_t i = 0; i < f.count(); ++i) {
      ASSERT_NEAR(f[i], want[static_cast<size_t>(i)],
                  5e-7 * std::abs(want[static_cast<size_t>(i)]) + 1e-7 * scale)
          << "vocabulary " << vocabulary << " element " << i;
    }
  }
}

TEST_P(CrossEntropy, LargeLogitsDoNotOverflow) {
  const Doubles logits = {1e4, 0, -1e4, 3e38, -3e38, 0};
  const std::vector<int32_t> targets = {0, 0};
  Buffer f(logits);
  EXPECT_EQ(LossOf(*ops_, f.data(), targets.data(), 2, 3), 0.0);
}

TEST_P(CrossEntropy, NotANumberAndInfinityShowInLossAndGradient) {
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Doubles logits(40, 0.5);
    logits[37] = bad;
    const std::vector<int32_t> targets = {3};
    Buffer f(logits);
    EXPECT_FALSE(std::isfinite(LossOf(*ops_, f.data(), targets.data(), 1, 40))) << bad;
    double loss = 0;
    ops_->CrossEntropyBackward(f.data(), targets.data(), &loss, 1, 40, 1);
    EXPECT_TRUE(std::isnan(f[0])) << bad;
  }
}

}  // namespace
}  // namespace headrace
