#include "common/philox.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace headrace {
namespace {

// The known answers published with Random123 for philox4x32, 10 rounds.
TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, StreamsOfDifferentNamesDiffer) {
  std::set<PhiloxBlock> blocks;
  for (const uint64_t seed : {0ull, 1ull, 1ull << 32, 1ull << 63}) {
    for (const RandomPurpose purpose : {RandomPurpose::kInit, RandomPurpose::kDropout,
                                        RandomPurpose::kData, RandomPurpose::kGenerate}) {
      for (uint32_t name = 0; name < 8; ++name) {
        blocks.insert(MakeStream(seed, purpose, name & 1, name >> 1 & 1, name >> 2).Block(0));
      }
    }
  }
  EXPECT_EQ(blocks.size(), 4u * 4u * 8u);
}

TEST(PhiloxTest, UniformFloatsStayBelowOne) {
  EXPECT_EQ(UniformFloat(0), 0.0f);
  EXPECT_LT(UniformFloat(~0u), 1.0f);
  double sum = 0;
  const RandomStream stream = MakeStream(7, RandomPurpose::kInit, 0, 0, 0);
  for (uint32_t i = 0; i < 10'000; ++i) sum += UniformFloat(stream.Block(i)[0]);
  EXPECT_NEAR(sum / 10'000, 0.5, 0.01);
}

}  // namespace
}  // namespace headrace
