#include "worker/checkpoint/shared_folder.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

class SharedFolderTest : public ::testing::Test {
 protected:
  SharedFolderTest() {
    EXPECT_TRUE(WriteFileAtomically(dir_ / "slice", "the state").ok());
    slice_.set_first_layer(2);
    slice_.set_end_layer(4);
    slice_.set_sha256("5ha256");
  }

  absl::Status Copy(const Cancellation* cancellation = nullptr) {
    return CopyToFolder(absl::StrCat("file://", dir_ / "nfs"), "j1", 12, dir_ / "slice", &slice_,
                        cancellation);
  }

  const TempDir dir_;
  v1::WeightsSlice slice_;
};

TEST_F(SharedFolderTest, ASliceLiesWhereItsAddressSays) {
  ASSERT_TRUE(Copy().ok());
  const std::string path = dir_ / "nfs/j1/12/2-4-5ha256.safetensors";
  EXPECT_EQ(slice_.uri(), absl::StrCat("file://", path));
  EXPECT_EQ(*ReadFile(path), "the state");
  EXPECT_TRUE(Copy().ok()) << "again is fine";
  int files = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(dir_ / "nfs/j1/12")) {
    ++files;
  }
  EXPECT_EQ(files, 1);
}

TEST_F(SharedFolderTest, NothingIsLeftOfACopyThatWasStopped) {
  Cancellation cancellation;
  cancellation.Cancel();
  EXPECT_TRUE(absl::IsCancelled(Copy(&cancellation)));
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "nfs/j1/12"));
  EXPECT_EQ(slice_.uri(), "");
}

TEST_F(SharedFolderTest, AFileInTheWayIsNamed) {
  ASSERT_TRUE(WriteFileAtomically(dir_ / "nfs", "").ok());
  EXPECT_THAT(std::string(Copy().message()), HasSubstr("nfs"));
}

TEST_F(SharedFolderTest, OnlyWholePathsOfFilesAreFolders) {
  EXPECT_EQ(*PathOfFolder("file:///mnt/nfs"), "/mnt/nfs");
  for (const char* uri : {"", "/mnt/nfs", "file://", "file:///", "file://host/path", "s3://b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(PathOfFolder(uri).status())) << uri;
  }
}

}  // namespace
}  // namespace headrace
