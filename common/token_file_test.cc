#include "common/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<TokenFile>> OpenContent(const TempDir& dir,
                                                       const std::string& content) {
  EXPECT_TRUE(WriteFileAtomically(dir / "tokens", content).ok());
  return TokenFile::Open(dir / "tokens");
}

// docs/format-tokens.md's example.
TEST(TokenFileTest, TheBytesAreThoseOfTheDocument) {
  const std::string header = TokenHeader(2, 3, 513);
  EXPECT_EQ(header, std::string("HRTOKENS"
                                "\x01\0\0\0"
                                "\x02\0\0\0"
                                "\x03\0\0\0\0\0\0\0"
                                "\x01\x02\0\0"
                                "\0\0\0\0",
                                32));
}

TEST(TokenFileTest, ReadsTokensOfEachWidth) {
  TempDir dir;
  auto file = OpenContent(dir, TokenHeader(1, 3, 255) + std::string("\x00\xff\x07", 3));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size(), 3);
  EXPECT_EQ((*file)->max_token(), 255);
  EXPECT_EQ((*file)->token_bytes(), 1);
  EXPECT_EQ((**file)[1], 255);
  EXPECT_EQ((**file)[2], 7);
  file = OpenContent(dir, TokenHeader(2, 2, 513) + std::string("\x01\x02\xff\x00", 4));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((**file)[0], 513);
  EXPECT_EQ((**file)[1], 255);
  file = OpenContent(dir, TokenHeader(4, 1, 0x7fffffff) + "\xff\xff\xff\x7f");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((**file)[0], 0x7fffffff);
}

TEST(TokenFileTest, AnEmptyListOfTokensIsAFile) {
  TempDir dir;
  const auto file = OpenContent(dir, TokenHeader(2, 0, 0));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size(), 0);
}

TEST(TokenFileTest, SaysWhatIsWrong) {
  std::string version = TokenHeader(1, 0, 0);
  version[8] = 9;
  std::string huge = TokenHeader(4, -1, 0);
  const std::pair<std::string, const char*> cases[] = {
      {"", "not a token file"},
      {"In the beginning", "not a token file"},
      {"HRTOKENS", "truncated in its header"},
      {version, "version 9, expected 1"},
      {TokenHeader(3, 0, 0), "3 bytes a token"},
      {TokenHeader(0, 0, 0), "0 bytes a token"},
      {TokenHeader(2, 2, 1) + "abc", "truncated: 2 tokens of 2 bytes promised, 3 bytes follow"},
      {TokenHeader(1, 1, 97) + "ab", "1 tokens of 1 bytes promised, 2 bytes follow"},
      {huge, "truncated"},
      {TokenHeader(1, 2, 97) + "ab", "largest token is 98, the header says 97"},
      {TokenHeader(4, 1, 0x80000000) + std::string("\0\0\0\x80", 4), "largest token"},
  };
  TempDir dir;
  for (const auto& [content, why] : cases) {
    const absl::Status status = OpenContent(dir, content).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace headrace
