#include <algorithm>

#include "worker/backend/cuda/kernels.h"
#include "worker/backend/cuda/kernels_testing.h"

namespace headrace::cuda {
namespace {

template <typename T>
class Losses : public ::testing::Test {};
TYPED_TEST_SUITE(Losses, ActivationTypes);

TYPED_TEST(Losses, AndTheirGradientMatchDoubleLoops) {
  using T = TypeParam;
  for (int64_t vocabulary : {1, 7, 256, 2053}) {
    const int64_t n = 3;
    Doubles logits = RandomValues(n * vocabulary, 1, 9), targets = RandomIds(n, 2, vocabulary);
    OnDevice<T> d(logits, 1);
    OnDevice<int32_t> dtargets(targets);
    OnDevice<double> losses(n), again(n), sum(1);
    const float scale = 0.25f;
    EXPECT_CUDA_OK(CrossEntropy<T>(d.get(), dtargets.get(), losses.get(), false, n, vocabulary,
                                   scale, nullptr));
    ExpectClose(d.doubles(), logits, 0, "logits left alone");
    EXPECT_CUDA_OK(
        CrossEntropy<T>(d.get(), dtargets.get(), again.get(), true, n, vocabulary, scale, nullptr));
    EXPECT_CUDA_OK(SumInOrder(losses.get(), sum.get(), n, nullptr));
    Doubles want_losses, want(logits.size());
    double want_sum = 0;
    for (int64_t t = 0; t < n; ++t) {
      const auto at = static_cast<size_t>(t * vocabulary);
      const auto target = static_cast<size_t>(targets[static_cast<size_t>(t)]);
      const auto width = static_cast<size_t>(vocabulary);
      const double max = *std::max_element(&logits[at], &logits[at] + width);
      double total = 0;
      for (size_t j = 0; j < width; ++j) total += std::exp(logits[at + j] - max);
      want_losses.push_back(std::log(total) + max - logits[at + target]);
      want_sum += want_losses.back();
      for (size_t j = 0; j < width; ++j) {
        want[at + j] = scale * (std::exp(logits[at + j] - max) / total - (j == target ? 1 : 0));
      }
    }
    ExpectClose(losses.doubles(), want_losses, 2e-6, "losses");
    ExpectClose(again.doubles(), want_losses, 2e-6, "losses beside the gradient");
    ExpectClose(sum.doubles(), {want_sum}, 2e-6, "sum");
    if (vocabulary > 1) ExpectClose(d.doubles(), want, 2 * kBound<T>, "gradient");
  }
}

TYPED_TEST(Losses, OfLogitsThatAreNotNumbersAreNone) {
  Doubles logits = {1, NAN, 2}, targets = {0};
  OnDevice<TypeParam> d(logits);
  OnDevice<int32_t> dtargets(targets);
  OnDevice<double> losses(1);
  EXPECT_CUDA_OK(
      CrossEntropy<TypeParam>(d.get(), dtargets.get(), losses.get(), true, 1, 3, 1.0f, nullptr));
  EXPECT_TRUE(std::isnan(losses.doubles()[0]));
  EXPECT_TRUE(std::isnan(d.doubles()[0]));
}

TEST(SquaredNorms, AreSumsInDouble) {
  for (int64_t count : {0, 1, 7, 4096, 65536 + 1029}) {
    Doubles x = RandomValues(count, 1);
    OnDevice<float> d(x, 1);
    OnDevice<double> sum(1), scratch(SquaredNormScratchBytes(count) / 8);
    EXPECT_CUDA_OK(SquaredNorm(d.get(), count, sum.get(), scratch.get(), nullptr));
    double want = 0;
    for (double v : x) want += v * v;
    EXPECT_NEAR(sum.doubles()[0], want, 1e-12 * want);
  }
}

TEST(NormalDraws, AreThoseOfTheStream) {
  const RandomStream stream = MakeStream(3, RandomPurpose::kInit, 4, 5, 6);
  const int64_t count = 1027;
  OnDevice<float> x(count, 1);
  EXPECT_CUDA_OK(FillNormal(x.get(), count, 0.02f, stream, nullptr));
  Doubles want;
  for (int64_t i = 0; i < count; ++i) {
    const PhiloxBlock block = stream.Block(static_cast<uint32_t>(i / 4));
    const size_t pair = static_cast<size_t>(i % 4 / 2 * 2);
    const double u = (block[pair] + 0.5) / 4294967296.0, v = (block[pair + 1] + 0.5) / 4294967296.0;
    const double radius = static_cast<double>(0.02f) * std::sqrt(-2 * std::log(u));
    want.push_back(radius * (i % 2 == 0 ? std::cos(2 * M_PI * v) : std::sin(2 * M_PI * v)));
  }
  ExpectClose(x.doubles(), want, 1e-7, "draws");
}

}  // namespace
}  // namespace headrace::cuda
