#include "common/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST(FileTest, ReadsWhatWasWritten) {
  TempDir dir;
  const std::string content("one\0two\n", 8);
  ASSERT_TRUE(WriteFileAtomically(dir / "f", content).ok());
  EXPECT_EQ(*ReadFile(dir / "f"), content);
}

TEST(FileTest, WritingReplacesAndLeavesNothingBeside) {
  TempDir dir;
  ASSERT_TRUE(WriteFileAtomically(dir / "f", "old and longer").ok());
  ASSERT_TRUE(WriteFileAtomically(dir / "f", "new").ok());
  EXPECT_EQ(*ReadFile(dir / "f"), "new");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.path()))
    ++files;
  EXPECT_EQ(files, 1);
}

TEST(FileTest, AFailedWriteNamesThePathAndKeepsTheOldFile) {
  TempDir dir;
  ASSERT_TRUE(MakeDirectories(dir / "f/inside").ok());
  const absl::Status status = WriteFileAtomically(dir / "f", "text");  // a folder is in the way
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir / "f"));
  EXPECT_TRUE(std::filesystem::is_directory(dir / "f/inside"));
}

TEST(FileTest, AMissingFileIsNotFoundAndNamed) {
  TempDir dir;
  for (const absl::Status& status :
       {ReadFile(dir / "none").status(), MappedFile::Open(dir / "none").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr(dir / "none"));
  }
}

TEST(FileTest, AFolderIsNoFile) {
  TempDir dir;
  EXPECT_EQ(ReadFile(dir.path()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(MappedFile::Open(dir.path()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(FileTest, MakesFoldersAllTheWayAndIsContentIfTheyExist) {
  TempDir dir;
  EXPECT_TRUE(MakeDirectories(dir / "a/b/c").ok());
  EXPECT_TRUE(MakeDirectories(dir / "a/b/c").ok());
  ASSERT_TRUE(WriteFileAtomically(dir / "file", "").ok());
  EXPECT_FALSE(MakeDirectories(dir / "file").ok());
  EXPECT_FALSE(MakeDirectories(dir / "file/below").ok());
}

TEST(FileTest, MapsAFileAndAnEmptyOne) {
  TempDir dir;
  ASSERT_TRUE(WriteFileAtomically(dir / "f", "mapped").ok());
  ASSERT_TRUE(WriteFileAtomically(dir / "empty", "").ok());
  EXPECT_EQ((*MappedFile::Open(dir / "f"))->data(), "mapped");
  EXPECT_EQ((*MappedFile::Open(dir / "empty"))->data(), "");
}

// Resident pages of the mapping, by the kernel's account.
int64_t ResidentPages(const MappedFile& file) {
  std::ifstream smaps("/proc/self/smaps");
  const std::string start = absl::StrFormat("%x-", reinterpret_cast<uintptr_t>(file.data().data()));
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    if (absl::StartsWith(line, start)) ours = true;
    int64_t kib = 0;
    if (ours && sscanf(line.c_str(), "Rss: %ld kB", &kib) == 1) return kib / 4;
  }
  ADD_FAILURE() << "no mapping at " << start;
  return -1;
}

TEST(FileTest, WhatAMappingReleasesIsNotInMemoryAndStillReads) {
  TempDir dir;
  const std::string data(64 * 4096 + 10, 'x');
  ASSERT_TRUE(WriteFileAtomically(dir / "f", data).ok());
  const auto file = *MappedFile::Open(dir / "f");
  ASSERT_EQ(file->data(), data);
  EXPECT_EQ(ResidentPages(*file), 65);
  file->Release(100, 10 * 4096 + 1);  // pages 1 to 9 whole
  EXPECT_EQ(ResidentPages(*file), 56);
  file->Release(0, int64_t{1} << 40);
  EXPECT_EQ(ResidentPages(*file), 1);  // the last is not whole
  file->Release(5, 5);
  EXPECT_EQ(file->data(), data);
}

TEST(FileTest, ALockIsExclusiveWhileItLives) {
  TempDir dir;
  auto lock = FileLock::Acquire(dir / "lock");
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(FileLock::Acquire(dir / "lock").status().code(), absl::StatusCode::kFailedPrecondition);
  lock->reset();
  EXPECT_TRUE(FileLock::Acquire(dir / "lock").ok());
}

}  // namespace
}  // namespace headrace
