#include "worker/checkpoint/slice_transfer.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>
#include <thread>

#include "worker/checkpoint/slice_fixture.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using SliceTransferTest = SliceTest;

TEST_F(SliceTransferTest, WhatIsOnThisDiskIsNotFetched) {
  KeepAt(own_.get(), content_);
  ExpectFetched();
  EXPECT_EQ(StoreAsked(), 0);
}

TEST_F(SliceTransferTest, AHolderIsAskedBeforeTheStore) {
  Hold(&a_);
  ExpectFetched();
  EXPECT_EQ(StoreAsked(), 0);
}

TEST_F(SliceTransferTest, ADamagedCopyOfThisDiskIsDeletedAndFetchedAnew) {
  KeepAt(own_.get(), Flipped());
  Hold(&a_);
  ExpectFetched();
}

TEST_F(SliceTransferTest, ADamagedCopyOfAHolderIsPassedBy) {
  KeepAt(a_.store.get(), Flipped());
  slice_.add_holder_addresses(a_.address);
  Hold(&b_);
  ExpectFetched();
  EXPECT_EQ(b_.last_offset, 0) << "nobody knows which part was right";
}

TEST_F(SliceTransferTest, TheNextHolderGoesOnWhereOneDied) {
  Hold(&a_);
  Hold(&b_);
  a_.breaks_after = 100'000;
  ExpectFetched();
  EXPECT_EQ(b_.last_offset, 100'000);
}

TEST_F(SliceTransferTest, TheStoreHasWhatNoHolderHas) {
  slice_.add_holder_addresses(a_.address);
  slice_.add_holder_addresses(absl::StrCat("unix:", dir_ / "nobody"));
  PutInStore(content_);
  ExpectFetched();
}

TEST_F(SliceTransferTest, ASharedFolderIsReadInsteadOfTheStore) {
  slice_.set_uri(absl::StrCat("file://", WriteSource()));
  PutInStore(content_);
  ExpectFetched();
  EXPECT_EQ(StoreAsked(), 0);
}

TEST_F(SliceTransferTest, ATornFileOfASharedFolderIsDataLossThatNamesTheSlice) {
  ASSERT_TRUE(WriteFileAtomically(dir_ / "torn", content_.substr(0, 1 << 20)).ok());
  slice_.set_uri(absl::StrCat("file://", dir_ / "torn"));
  const absl::Status status = Fetch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(slice_.sha256()), HasSubstr("layers 0 to 3 after step 7"),
                    HasSubstr("ends after 1048576 of")));
  ExpectNothingUnfinished("own");
}

TEST_F(SliceTransferTest, AMissingFileOfASharedFolderIsNotFound) {
  slice_.set_uri(absl::StrCat("file://", dir_ / "nothing"));
  EXPECT_EQ(Fetch().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SliceTransferTest, ADamagedBlobOfTheStoreIsDataLoss) {
  PutInStore(Flipped());
  const absl::Status status = Fetch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(slice_.sha256()));
  ExpectNothingUnfinished("own");
}

// A holder that is gone may come back in a moment; after that the slice is lost.
TEST_F(SliceTransferTest, WhatOnlyADeadHolderHadIsNotFound) {
  Hold(&a_);
  a_.End();
  const absl::Time start = absl::Now();
  const absl::Status status = Fetch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(a_.address));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST_F(SliceTransferTest, ASliceTooLargeForThisDiskIsRefusedBeforeItComes) {
  Hold(&a_);
  slice_.set_size_bytes(std::numeric_limits<int64_t>::max() / 2);
  EXPECT_EQ(Fetch().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(a_.last_offset, -1);
}

TEST_F(SliceTransferTest, AFetchIsCancelled) {
  slice_.add_holder_addresses(absl::StrCat("unix:", dir_ / "nobody"));
  server_->Shutdown(std::chrono::system_clock::now());
  Cancellation cancellation;
  std::thread fetch(
      [&] { EXPECT_EQ(Fetch(&cancellation).status().code(), absl::StatusCode::kCancelled); });
  const absl::Time start = absl::Now();
  cancellation.Cancel();
  fetch.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

}  // namespace
}  // namespace headrace
