#include "client/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/sha256.h"
#include "common/token_file.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string LlmcHeader(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> words(256, 0);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  return Bytes(words);
}

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() : dir_(::testing::TempDir() + "/dataset_test") {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }

  void Write(const std::string& name, const std::string& content) {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << content;
  }

  // A job over sequences of 4 tokens without validation, its data section as given in line 9.
  absl::StatusOr<PreparedDataset> Prepare(const std::string& data, int vocabulary = 256) {
    const std::string yaml = absl::StrCat(
        "name: t\nmodel:\n  family: gpt2\n  vocab_size: ", vocabulary,
        "\n  n_layer: 1\n  n_embd: 8\n  n_head: 2\n  n_positions: 4\ndata: {", data,
        ", validation_split: 0}\ntraining: {steps: 1, batch_size: 1, micro_batches: 1, "
        "sequence_length: 4, optimizer: {kind: adamw, learning_rate: 0.1}}\n"
        "pipeline: {stages: 1}\n");
    const auto job = ParseJobFile(yaml, dir_ + "/job.yaml");
    if (!job.ok()) return job.status();
    return PrepareDataset(*job, dir_ + "/cache");
  }

  std::vector<int32_t> TokensOf(const PreparedDataset& prepared) {
    const auto file = TokenFile::Open(prepared.path);
    EXPECT_TRUE(file.ok()) << file.status();
    std::vector<int32_t> tokens;
    for (int64_t i = 0; file.ok() && i < (*file)->size(); ++i) tokens.push_back((**file)[i]);
    return tokens;
  }

  const std::string dir_;
};

TEST_F(DatasetTest, MakesEachByteOfATextAToken) {
  Write("t.txt", std::string("ab\0\xff\n", 5));
  const auto prepared = Prepare("text: t.txt, tokenizer: byte");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(TokensOf(*prepared), (std::vector<int32_t>{'a', 'b', 0, 255, '\n'}));
  EXPECT_EQ(prepared->dataset.num_tokens(), 5);
  EXPECT_EQ(prepared->dataset.max_token(), 255);
  EXPECT_EQ(prepared->dataset.token_bytes(), 1);
}

TEST_F(DatasetTest, NamesTheResultByItsHashAndFindsItAgain) {
  Write("t.txt", "hello, hello");
  const auto first = Prepare("text: t.txt, tokenizer: byte");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Sha256Hex(*ReadFile(first->path)), first->dataset.sha256());
  const auto written = std::filesystem::last_write_time(first->path);
  const auto second = Prepare("text: t.txt, tokenizer: byte");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->path, first->path);
  EXPECT_EQ(std::filesystem::last_write_time(second->path), written);
}

TEST_F(DatasetTest, WritesACutShortCacheFileAgain) {
  Write("t.txt", "hello, hello");
  const auto first = Prepare("text: t.txt, tokenizer: byte");
  ASSERT_TRUE(first.ok()) << first.status();
  std::filesystem::resize_file(first->path, 7);
  ASSERT_TRUE(Prepare("text: t.txt, tokenizer: byte").ok());
  EXPECT_EQ(Sha256Hex(*ReadFile(first->path)), first->dataset.sha256());
}

TEST_F(DatasetTest, ReadsBareAndHeadedBinFilesAlike) {
  const std::vector<uint16_t> narrow = {1, 2, 499, 4, 5};
  const std::vector<uint32_t> wide = {1, 2, 499, 4, 70000};
  Write("n16.bin", Bytes(narrow));
  Write("l16.bin", LlmcHeader(20240520, 1, 5) + Bytes(narrow));
  Write("n32.bin", Bytes(wide));
  Write("l32.bin", LlmcHeader(20240801, 7, 5) + Bytes(wide));
  const auto n16 = Prepare("tokens: n16.bin, token_type: uint16", 500);
  const auto l16 = Prepare("tokens: l16.bin, token_type: uint16", 500);
  const auto n32 = Prepare("tokens: n32.bin, token_type: uint32", 70001);
  const auto l32 = Prepare("tokens: l32.bin, token_type: uint32", 70001);
  for (const auto* prepared : {&n16, &l16, &n32, &l32}) {
    ASSERT_TRUE(prepared->ok()) << prepared->status();
  }
  EXPECT_EQ(TokensOf(*n16), (std::vector<int32_t>{1, 2, 499, 4, 5}));
  EXPECT_EQ(TokensOf(*n32), (std::vector<int32_t>{1, 2, 499, 4, 70000}));
  EXPECT_EQ(l16->dataset.sha256(), n16->dataset.sha256());
  EXPECT_EQ(l32->dataset.sha256(), n32->dataset.sha256());
  EXPECT_EQ(n16->dataset.token_bytes(), 2);
  EXPECT_EQ(n32->dataset.token_bytes(), 4);
  EXPECT_EQ(n32->dataset.max_token(), 70000);
}

TEST_F(DatasetTest, RefusesBadFilesWithLineKeyAndReason) {
  Write("empty.txt", "");
  Write("short.txt", "abc");
  Write("high.txt", "abcd\xc8z");
  Write("odd.bin", "12345");
  Write("odd32.bin", "123456");
  Write("count.bin", LlmcHeader(20240520, 1, 6) + Bytes<uint16_t>({1, 2, 3, 4, 5}));
  Write("negative.bin", LlmcHeader(20240520, 1, -1) + Bytes<uint16_t>({1, 2, 3, 4, 5}));
  Write("version.bin", LlmcHeader(20240520, 2, 5) + Bytes<uint16_t>({1, 2, 3, 4, 5}));
  Write("wide.bin", LlmcHeader(20240801, 7, 5) + Bytes<uint32_t>({1, 2, 3, 4, 5}));
  Write("large.bin", Bytes<uint16_t>({1, 2, 3, 256, 300, 5}));
  Write("huge.bin", Bytes<uint32_t>({1, 2, 3, 4, 0xffffffff}));
  std::filesystem::create_directories(dir_ + "/folder");
  const struct {
    const char *data, *key, *says;
  } kCases[] = {
      {"text: none.txt, tokenizer: byte", "data.text", "none.txt: no such file"},
      {"text: folder, tokenizer: byte", "data.text", "folder: not a file"},
      {"text: /dev/zero, tokenizer: byte", "data.text", "/dev/zero: not a file"},
      {"text: empty.txt, tokenizer: byte", "data.text", "empty.txt: the file is empty"},
      {"text: short.txt, tokenizer: byte", "data.", "3 tokens"},
      {"text: high.txt, tokenizer: byte", "data.text",
       "token 200 at position 4; expected tokens below model.vocab_size 128"},
      {"tokens: none.bin, token_type: uint16", "data.tokens", "none.bin: no such file"},
      {"tokens: odd.bin, token_type: uint16", "data.tokens",
       "5 bytes of tokens; expected a multiple of 2 (uint16)"},
      {"tokens: odd32.bin, token_type: uint32", "data.tokens", "expected a multiple of 4 (uint32)"},
      {"tokens: count.bin, token_type: uint16", "data.tokens",
       "its header promises 6 tokens; 5 follow it"},
      {"tokens: negative.bin, token_type: uint16", "data.tokens", "promises -1 tokens"},
      {"tokens: version.bin, token_type: uint16", "data.tokens",
       "llm.c header of version 2; expected version 1"},
      {"tokens: wide.bin, token_type: uint16", "data.token_type",
       "says uint32 in its header; expected uint16"},
      {"tokens: large.bin, token_type: uint16", "data.tokens",
       "token 256 at position 3; expected tokens below model.vocab_size 128"},
      {"tokens: huge.bin, token_type: uint32", "data.tokens", "token 4294967295 at position 4"},
  };
  for (const auto& c : kCases) {
    const auto prepared = Prepare(c.data, 128);
    EXPECT_EQ(prepared.status().code(), absl::StatusCode::kInvalidArgument) << c.data;
    EXPECT_THAT(std::string(prepared.status().message()),
                AllOf(StartsWith(absl::StrCat(dir_, "/job.yaml:9: ", c.key)), HasSubstr(c.says)))
        << c.data;
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/cache") &&
               !std::filesystem::is_empty(dir_ + "/cache"));
}

}  // namespace
}  // namespace headrace
