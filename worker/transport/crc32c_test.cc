#include "worker/transport/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

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

TEST(Crc32c, IsTheSameByInstructionByTablesAndInParts) {
  std::mt19937 random(7);
  std::string bytes(100'003, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  for (size_t size : {1u, 7u, 8u, 9u, 4095u, 12287u, 12288u, 12289u, 24576u, 100'003u}) {
    SCOPED_TRACE(size);
    const uint32_t whole = ExtendCrc32c(0, bytes.data(), size);
    EXPECT_EQ(whole, ExtendCrc32cPortable(0, bytes.data(), size));
    const size_t cut = random() % size;
    const uint32_t first = ExtendCrc32c(0, bytes.data(), cut);
    EXPECT_EQ(whole, ExtendCrc32c(first, bytes.data() + cut, size - cut));
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

}  // namespace
}  // namespace headrace
