#include "common/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

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
