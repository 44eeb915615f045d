#include "common/sha256.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

// FIPS 180-2's examples.
TEST(Sha256Test, GivesThePublishedAnswers) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesHashAsTheWhole) {
  Sha256 hash;
  hash.Update("a");
  hash.Update("");
  hash.Update("bc");
  EXPECT_EQ(hash.Finish(), Sha256Hex("abc"));
}

TEST(Sha256Test, KnowsAHashWhenItSeesOne) {
  EXPECT_TRUE(IsSha256(Sha256Hex("x")));
  EXPECT_FALSE(IsSha256(""));
  EXPECT_FALSE(IsSha256(std::string(63, 'a')));
  EXPECT_FALSE(IsSha256(std::string(64, 'A')));
  EXPECT_FALSE(IsSha256("../" + std::string(61, 'a')));
}

}  // namespace
}  // namespace headrace
