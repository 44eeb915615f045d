#include "worker/backend/cpu/random.h"

#include <set>

#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

TEST(RandomBlocks, AreTheStreamsBlocksOneByOne) {
  const RandomStream stream = MakeStream(0x123456789abcdef0, RandomPurpose::kDropout, 5, 6, 7);
  for (uint64_t first : {uint64_t{0}, uint64_t{3}, uint64_t{0xfffffff0}, uint64_t{0xfffffffd}}) {
    for (int64_t num : {1, 15, 16, 17, 50}) {
      std::vector<uint32_t> out(static_cast<size_t>(4 * num));
      RandomBlocks(stream, first, num, out.data());
      for (int64_t b = 0; b < num; ++b) {
        const uint64_t index = first + static_cast<uint64_t>(b);
        RandomStream page = stream;
        page.key[1] ^= static_cast<uint32_t>(index >> 32);
        const PhiloxBlock want = page.Block(static_cast<uint32_t>(index));
        for (size_t w = 0; w < 4; ++w) {
          ASSERT_EQ(out[static_cast<size_t>(4 * b) + w], want[w]) << "block " << index;
        }
      }
    }
  }
}

class RandomOps : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Ops> ops_ = CreateCpuOps(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, RandomOps, ::testing::Values(1, 2));

TEST_P(RandomOps, DropoutKeepsTheRightShareAndScalesIt) {
  const int64_t count = 1'000'003;
  for (float p : {0.1f, 0.5f, 0.9f}) {
    Buffer x(Doubles(static_cast<size_t>(count), 1.0)), y(count);
    ops_->Dropout(x.data(), y.data(), count, p, MakeStream(1, RandomPurpose::kDropout, 1, 2, 3));
    int64_t dropped = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (y[i] == 0) {
        ++dropped;
      } else {
        ASSERT_FLOAT_EQ(y[i], 1 / (1 - p));
      }
    }
    const double sigma = std::sqrt(p * (1 - p) / static_cast<double>(count));
    EXPECT_NEAR(static_cast<double>(dropped) / static_cast<double>(count), p, 5 * sigma);
  }
}

TEST_P(RandomOps, TheDropoutMaskIsAFunctionOfStreamAndElementOnly) {
  const int64_t count = 20'011;
  const RandomStream stream = MakeStream(7, RandomPurpose::kDropout, 4, 5, 6);
  const Doubles x = RandomValues(count, 1), dy = RandomValues(count, 2);
  Buffer fx(x), fdy(dy), y(count), dx(count);
  ops_->Dropout(fx.data(), y.data(), count, 0.2f, stream);
  ops_->Dropout(fdy.data(), dx.data(), count, 0.2f, stream);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = stream.Block(static_cast<uint32_t>(i / 4))[static_cast<size_t>(i % 4)];
    const bool dropped = UniformFloat(bits) < 0.2f;
    ASSERT_EQ(y[i] == 0, dropped) << i;
    ASSERT_EQ(dx[i] == 0, dropped) << i;
  }
  ops_->Dropout(fx.data(), fx.data(), count, 0.2f, stream);
  EXPECT_EQ(std::memcmp(fx.data(), y.data(), static_cast<size_t>(count) * 4), 0) << "in place";
  Buffer other(count);
  ops_->Dropout(fdy.data(), other.data(), count, 0.2f,
                MakeStream(7, RandomPurpose::kDropout, 4, 5, 7));
  EXPECT_NE(std::memcmp(other.data(), dx.data(), static_cast<size_t>(count) * 4), 0)
      << "another layer has another mask";
}

TEST_P(RandomOps, NormalNumbersHaveTheMomentsOfANormalDistribution) {
  const int64_t count = 400'001;
  const double std = 0.02;
  Buffer x(count);
  ops_->FillNormal(x.data(), count, static_cast<float>(std),
                   MakeStream(1, RandomPurpose::kInit, 3, 4, 0));
  double sums[5] = {};
  int64_t beyond_two = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double z = x[i] / std;
    for (int power = 1; power <= 4; ++power) sums[power] += std::pow(z, power);
    beyond_two += std::abs(z) > 2;
  }
  const double n = static_cast<double>(count), root = std::sqrt(n);
  EXPECT_NEAR(sums[1] / n, 0, 5 / root);
  EXPECT_NEAR(sums[2] / n, 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(sums[3] / n, 0, 5 * std::sqrt(15.0) / root);
  EXPECT_NEAR(sums[4] / n, 3, 5 * std::sqrt(96.0) / root);
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, 0.0455, 0.002);
}

TEST_P(RandomOps, APrefixOfANormalTensorDoesNotDependOnItsLength) {
  const RandomStream stream = MakeStream(1, RandomPurpose::kInit, 3, 4, 0);
  Buffer longer(9001), shorter(4099);
  ops_->FillNormal(longer.data(), 9001, 1, stream);
  ops_->FillNormal(shorter.data(), 4099, 1, stream);
  EXPECT_EQ(std::memcmp(longer.data(), shorter.data(), 4099 * 4), 0);
}

}  // namespace
}  // namespace headrace
