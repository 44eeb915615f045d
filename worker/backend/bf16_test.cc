#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "worker/backend/ops_testing.h"

namespace headrace {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

class Bf16 : public ::testing::TestWithParam<int> {
 protected:
  uint16_t Narrow(float x) {
    uint16_t y = 0;
    ops_->NarrowBf16(&x, &y, 1);
    return y;
  }
  float Widen(uint16_t x) {
    float y = 0;
    ops_->WidenBf16(&x, &y, 1);
    return y;
  }

  std::unique_ptr<Ops> ops_ = CreateCpuOps(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, Bf16, ::testing::Values(1, 2));

TEST_P(Bf16, EveryBfloat16WidensAndNarrowsToItself) {
  std::vector<uint16_t> all(1 << 16), back(1 << 16);
  std::vector<float> wide(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  ops_->WidenBf16(all.data(), wide.data(), 1 << 16);
  ops_->NarrowBf16(wide.data(), back.data(), 1 << 16);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(wide[i]), static_cast<uint32_t>(i) << 16);
    const bool nan = (i & 0x7fff) > 0x7f80;
    EXPECT_EQ(back[i], nan ? i | 0x40 : i) << i;
  }
}

// The nearest of the two neighbours, by distance in double; of equally near ones the even one.
TEST_P(Bf16, RoundsToTheNearestAndTiesToEven) {
  const uint32_t kBits[] = {0x00000000, 0x80000000, 0x00000001, 0x00007fff, 0x00008000, 0x00008001,
                            0x00018000, 0x3f800000, 0x3f807fff, 0x3f808000, 0x3f808001, 0x3f818000,
                            0x3f817fff, 0x3f818001, 0xbf808000, 0xbf818000, 0x7f7f0000, 0x7f7e8000,
                            0x00800000, 0x007fffff, 0x40490fdb, 0xc0490fdb, 0x42f6e979, 0x00000123};
  for (uint32_t bits : kBits) {
    const double x = FromBits(bits);
    const uint16_t below = static_cast<uint16_t>(bits >> 16), above = below + 1;  // by magnitude
    const double to_below = std::abs(x - FromBits(static_cast<uint32_t>(below) << 16));
    const double to_above = std::abs(x - FromBits(static_cast<uint32_t>(above) << 16));
    const bool down = to_below < to_above || (to_below == to_above && below % 2 == 0);
    EXPECT_EQ(Narrow(FromBits(bits)), down ? below : above) << std::hex << bits;
  }
}

TEST_P(Bf16, KeepsInfinityAndNanApart) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Widen(Narrow(infinity)), infinity);
  EXPECT_EQ(Widen(Narrow(-infinity)), -infinity);
  EXPECT_EQ(Widen(Narrow(std::numeric_limits<float>::max())), infinity);  // nearest: 2^128
  // Payloads whose upper half is empty, or which would carry over into a sign.
  for (uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
    EXPECT_TRUE(std::isnan(Widen(Narrow(FromBits(bits))))) << std::hex << bits;
  }
}

TEST_P(Bf16, TakesAnyCountAndWritesNothingBehind) {
  for (int64_t count : {1, 2, 15, 16, 17, 31, 33, 4095, 4096, 4097, 12289}) {
    const Doubles x = RandomValues(count, 1);
    Buffer fx(x), narrow((count + 1) / 2), wide(count);
    uint16_t* const halves = reinterpret_cast<uint16_t*>(narrow.data());
    ops_->NarrowBf16(fx.data(), halves, count);
    ops_->WidenBf16(halves, wide.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_LE(std::abs(wide[i] - fx[i]), std::abs(fx[i]) / 256) << i << " of " << count;
    }
  }
}

}  // namespace
}  // namespace headrace
