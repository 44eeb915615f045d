#include "worker/transport/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace headrace {
namespace {

std::string Ascending() {
  std::string s;
  for (int i = 0; i < 32; ++i) s.push_back(static_cast<char>(i));
  return s;
}

// RFC 3720, appendix B.4, and the check value every CRC catalogue lists.
TEST(Crc32c, GivesThePublishedValues) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  const std::string up = Ascending();
  EXPECT_EQ(Crc32c(up), 0x46dd794eu);
  EXPECT_EQ(Crc32c(std::string(up.rbegin(), up.rend())), 0x113fdb5cu);
}

class Crc32cWayTest : public testing::TestWithParam<Crc32cWay> {};

TEST_P(Crc32cWayTest, IsTheSameAsByTablesAndInParts) {
  const Crc32cWay& tables = Crc32cWays().back();
  std::mt19937 random(7);
  std::string bytes(100'003, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  for (size_t size : {1u, 7u, 8u, 9u, 255u, 256u, 257u, 511u, 512u, 513u, 4095u, 12287u, 12288u,
                      12289u, 24576u, 100'003u}) {
    SCOPED_TRACE(size);
    const uint32_t whole = GetParam().Extend(0, bytes.data(), size);
    EXPECT_EQ(whole, tables.Extend(0, bytes.data(), size));
    const size_t cut = random() % size;
    const uint32_t first = GetParam().Extend(0, bytes.data(), cut);
    EXPECT_EQ(whole, GetParam().Extend(first, bytes.data() + cut, size - cut));
  }
}

TEST(Crc32c, SeesEverySingleFlippedBit) {
  std::string bytes(64, 'x');
  const uint32_t good = Crc32c(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(Crc32c(bytes), good) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
}

TEST_P(Crc32cWayTest, ACopyIsWholeAndHasTheSameSum) {
  std::mt19937 random(7);
  std::vector<unsigned char> from(100'000), to(from.size());
  for (unsigned char& byte : from) byte = static_cast<unsigned char>(random());
  for (const bool past_cache : {false, true}) {
    for (const size_t size :
         {0, 1, 7, 8, 63, 64, 65, 255, 256, 257, 512, 4096, 12287, 12288, 12289, 50'000}) {
      for (const size_t shift : {0, 1, 8, 33}) {
        std::fill(to.begin(), to.end(), 0xee);
        const unsigned char* const source = from.data() + 3 * shift;
        EXPECT_EQ(GetParam().CopyAndExtend(5, to.data() + shift, source, size, past_cache),
                  Crc32cWays().back().Extend(5, source, size))
            << size << " " << shift;
        EXPECT_TRUE(std::equal(source, source + size, to.data() + shift)) << size << " " << shift;
        EXPECT_EQ(to[shift + size], 0xee);
        if (shift > 0) {
          EXPECT_EQ(to[shift - 1], 0xee);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Crc32cWayTest, testing::ValuesIn(Crc32cWays()),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace headrace
