#include "coordinator/store/blob_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "common/file.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

class BlobStoreTest : public ::testing::Test {
 protected:
  BlobStoreTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "/blob_store_" + info->name();
    std::filesystem::remove_all(folder_);
    Reopen();
  }
  ~BlobStoreTest() override { std::filesystem::remove_all(folder_); }

  void Reopen() {
    store_.reset();
    auto opened = BlobStore::Open(folder_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  std::unique_ptr<BlobWriter> StartUpload(const std::string& sha256, int64_t size, int64_t offset) {
    auto writer = store_->StartUpload(sha256, size, offset);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? *std::move(writer) : nullptr;
  }

  const std::string content_ = "In the beginning";
  const std::string sha256_ = Sha256Hex(content_);
  const int64_t size_ = static_cast<int64_t>(content_.size());
  std::string folder_;
  std::unique_ptr<BlobStore> store_;
};

TEST_F(BlobStoreTest, KeepsWhatWasUploadedUnderItsHash) {
  auto writer = StartUpload(sha256_, size_, 0);
  ASSERT_TRUE(writer->Append(content_).ok());
  EXPECT_FALSE(store_->Stat(sha256_)->complete) << "visible before its hash was verified";
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_TRUE(store_->Stat(sha256_)->complete);
  EXPECT_EQ(store_->Stat(sha256_)->size_bytes, size_);
  EXPECT_EQ(*ReadFile(*store_->Path(sha256_)), content_);
  EXPECT_EQ(store_->total_bytes(), size_);
}

TEST_F(BlobStoreTest, GoesOnWhereAnUploadWasBrokenOffEvenInAnotherProcess) {
  StartUpload(sha256_, size_, 0)->Append(content_.substr(0, 6)).IgnoreError();
  Reopen();
  ASSERT_EQ(store_->Stat(sha256_)->size_bytes, 6);
  auto writer = StartUpload(sha256_, size_, 6);
  ASSERT_TRUE(writer->Append(content_.substr(6)).ok());
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ(*ReadFile(*store_->Path(sha256_)), content_);
}

TEST_F(BlobStoreTest, ForgetsPartsThatNobodyAddedToForAWeekAndKeepsBlobs) {
  ASSERT_TRUE(StartUpload(sha256_, size_, 0)->Append(content_).ok());
  const std::string other = Sha256Hex("other"), third = Sha256Hex("third");
  auto whole = StartUpload(other, 5, 0);
  ASSERT_TRUE(whole->Append("other").ok());
  ASSERT_TRUE(whole->Commit().ok());
  ASSERT_TRUE(StartUpload(third, 5, 0)->Append("th").ok());
  std::ofstream(folder_ + "/partial/notes") << "not a blob's part";
  const auto age = [&](const std::string& path, absl::Duration duration) {
    const timespec time = absl::ToTimespec(absl::Now() - duration);
    const timespec times[2] = {time, time};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0) << path;
  };
  age(folder_ + "/partial/" + sha256_, BlobStore::kPartialsKept + absl::Minutes(1));
  age(folder_ + "/partial/" + third, BlobStore::kPartialsKept - absl::Minutes(1));
  age(folder_ + "/partial/notes", absl::Hours(10000));
  age(*store_->Path(other), absl::Hours(10000));
  Reopen();
  EXPECT_EQ(store_->Stat(sha256_)->size_bytes, 0) << "older than a week";
  EXPECT_EQ(store_->Stat(third)->size_bytes, 2) << "not yet a week old";
  EXPECT_TRUE(store_->Stat(other)->complete);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/partial/notes"));
}

TEST_F(BlobStoreTest, StartsAfreshAtOffsetZero) {
  StartUpload(sha256_, size_, 0)->Append("garbage").IgnoreError();
  auto writer = StartUpload(sha256_, size_, 0);
  ASSERT_TRUE(writer->Append(content_).ok());
  EXPECT_TRUE(writer->Commit().ok());
}

TEST_F(BlobStoreTest, RefusesAnOffsetThatIsNotWhereItStopped) {
  StartUpload(sha256_, size_, 0)->Append(content_.substr(0, 6)).IgnoreError();
  const absl::Status status = store_->StartUpload(sha256_, size_, 7).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("6 bytes"));
}

TEST_F(BlobStoreTest, ThrowsAwayContentOfAnotherHash) {
  auto writer = StartUpload(sha256_, size_, 0);
  ASSERT_TRUE(writer->Append("In the beginninG").ok());
  EXPECT_EQ(writer->Commit().code(), absl::StatusCode::kDataLoss);
  writer.reset();
  EXPECT_FALSE(store_->Stat(sha256_)->complete);
  EXPECT_EQ(store_->Stat(sha256_)->size_bytes, 0);
}

TEST_F(BlobStoreTest, RefusesMoreThanWasAnnouncedAndCommitsNoLess) {
  auto writer = StartUpload(sha256_, size_, 0);
  EXPECT_EQ(writer->Append(content_ + "!").code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(writer->Append(content_.substr(1)).ok());
  EXPECT_EQ(writer->Commit().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(BlobStoreTest, LetsOneAtATimeUploadABlob) {
  auto writer = StartUpload(sha256_, size_, 0);
  EXPECT_EQ(store_->StartUpload(sha256_, size_, 0).status().code(), absl::StatusCode::kUnavailable);
  writer.reset();
  EXPECT_TRUE(store_->StartUpload(sha256_, size_, 0).ok());
}

TEST_F(BlobStoreTest, KeepsAnEmptyBlob) {
  const std::string empty = Sha256Hex("");
  ASSERT_TRUE(StartUpload(empty, 0, 0)->Commit().ok());
  EXPECT_TRUE(store_->Stat(empty)->complete);
}

TEST_F(BlobStoreTest, SaysThatAWholeBlobIsThere) {
  auto writer = StartUpload(sha256_, size_, 0);
  ASSERT_TRUE(writer->Append(content_).ok());
  ASSERT_TRUE(writer->Commit().ok());
  writer.reset();
  EXPECT_EQ(store_->StartUpload(sha256_, size_, 0).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(BlobStoreTest, RemovesABlobUnlessSomebodyUploadsIt) {
  auto writer = StartUpload(sha256_, size_, 0);
  ASSERT_TRUE(writer->Append(content_).ok());
  EXPECT_EQ(store_->Remove(sha256_).code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(writer->Commit().ok());
  writer.reset();
  ASSERT_TRUE(store_->Remove(sha256_).ok());
  EXPECT_FALSE(store_->Stat(sha256_)->complete);
  EXPECT_EQ(store_->total_bytes(), 0);
  EXPECT_TRUE(store_->Remove(sha256_).ok()) << "as it was to be";
  EXPECT_EQ(store_->Touch(sha256_).code(), absl::StatusCode::kNotFound);
}

// A bit flipped on the disk: the same content could not be sent again, for the store had it.
TEST_F(BlobStoreTest, RemovesWhatTheDiskHasDamaged) {
  const std::atomic<bool> stop = false;
  auto writer = StartUpload(sha256_, size_, 0);
  ASSERT_TRUE(writer->Append(content_).ok());
  ASSERT_TRUE(writer->Commit().ok());
  writer.reset();
  EXPECT_FALSE(*store_->RemoveIfDamaged(sha256_, stop));
  std::ofstream(*store_->Path(sha256_), std::ios::in | std::ios::out) << 'i';
  EXPECT_TRUE(*store_->RemoveIfDamaged(sha256_, stop));
  EXPECT_TRUE(store_->StartUpload(sha256_, size_, 0).ok());
}

TEST_F(BlobStoreTest, MakesNoPathOfWhatIsNoHash) {
  for (const std::string& name :
       {std::string("../../etc/passwd"), std::string(64, 'A'), std::string(63, 'a'),
        std::string("../") + std::string(61, 'a'), std::string()}) {
    EXPECT_EQ(store_->Stat(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store_->Path(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store_->Touch(name).code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store_->Remove(name).code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store_->StartUpload(name, 1, 0).status().code(), absl::StatusCode::kInvalidArgument)
        << name;
  }
}

TEST_F(BlobStoreTest, RefusesMoreThanTheDiskHolds) {
  const absl::Status status = store_->StartUpload(sha256_, int64_t{1} << 60, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace headrace
