#include "common/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string.h>

#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file with this header text and so many payload bytes.
std::string FileOf(const std::string& header, size_t payload_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  return file + header + std::string(payload_bytes, '\0');
}

absl::Status OpenStatus(const std::string& content) {
  TempDir dir;
  EXPECT_TRUE(WriteFileAtomically(dir / "f", content).ok());
  return SafetensorsFile::Open(dir / "f").status();
}

TEST(SafetensorsTest, WhatIsWrittenIsReadBack) {
  const std::vector<float> z = {1, 2, 3, 4, 5, 6}, a = {7};
  // Names out of alphabetical order: the file's order is the order they were added in.
  const std::vector<NamedTensor> tensors = {{"z", {2, 3}, z.data()}, {"a", {}, a.data()}};
  std::string content = SafetensorsHeader(tensors, {{"format", "pt"}});
  EXPECT_EQ(content.size() % 8, 0u);
  content.append(reinterpret_cast<const char*>(z.data()), 24);
  content.append(reinterpret_cast<const char*>(a.data()), 4);
  TempDir dir;
  ASSERT_TRUE(WriteFileAtomically(dir / "f", content).ok());
  const auto file = SafetensorsFile::Open(dir / "f");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 2u);
  const NamedTensor& first = (*file)->tensors()[0];
  EXPECT_EQ(first.name, "z");
  EXPECT_THAT(first.shape, ElementsAre(2, 3));
  EXPECT_EQ(memcmp(first.data, z.data(), 24), 0);
  EXPECT_EQ((*file)->tensors()[1].name, "a");
  EXPECT_EQ((*file)->tensors()[1].data[0], 7);
  EXPECT_EQ((*file)->payload().size(), 28u);
  EXPECT_THAT((*file)->metadata(),
              ElementsAre(std::pair<std::string, std::string>("format", "pt")));
}

TEST(SafetensorsTest, TheHeaderIsWhatTheFormatSays) {
  const std::string header = SafetensorsHeader({{"w", {2}, nullptr}}, {});
  EXPECT_EQ(header.substr(8), R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )");
}

TEST(SafetensorsTest, NamesWhatIsWrong) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "not a safetensors file"},
      {"short", "not a safetensors file"},
      {std::string(8, '\xff'), "not a safetensors file"},
      {FileOf("{", 0), "not a JSON object"},
      {FileOf("[1]", 0), "not a JSON object"},
      {FileOf(R"({"w":7})", 0), "\"w\" is not described"},
      {FileOf(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4), "\"w\" has no dtype"},
      {FileOf(R"({"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", 2),
       "BF16, expected F32"},
      {FileOf(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), "its shape needs"},
      {FileOf(R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4), "no shape"},
      {FileOf(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
       "\"w\" has 4 bytes, its shape needs 8"},
      {FileOf(R"({"w":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0),
       "its shape needs"},
      {FileOf(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4), "data_offsets"},
      {FileOf(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4),
       "data_offsets"},
      {FileOf(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4), "leaves the file"},
      {FileOf(R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
              R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
              8),
       "\"w\" overlaps"},
      {FileOf(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
       "\"w\" leaves a gap"},
      {FileOf(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8),
       "belong to no tensor"},
  };
  for (const auto& [content, why] : cases) {
    const absl::Status status = OpenStatus(content);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace headrace
