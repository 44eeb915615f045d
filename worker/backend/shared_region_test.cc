#include "worker/backend/shared_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/backend/arena.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<SharedRegion> Make(int64_t bytes) {
  absl::StatusOr<std::unique_ptr<SharedRegion>> region = SharedRegion::Create(bytes);
  if (!region.ok()) ADD_FAILURE() << region.status();
  return *std::move(region);
}

int FilesInDevShm() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    ++count;
  return count;
}

TEST(SharedRegionTest, WhatOneSideWritesTheOtherReads) {
  const auto owner = Make(3 * SharedRegion::kPage);
  char* const first = *owner->Carve(100);
  char* const second = *owner->Carve(2 * SharedRegion::kPage);
  EXPECT_EQ(second - first, SharedRegion::kPage);
  EXPECT_FALSE(owner->Carve(1).ok());
  const auto other = SharedRegion::Attach(owner->name());
  ASSERT_TRUE(other.ok()) << other.status();
  char* const seen = (*other)->At(owner->OffsetOf(second), 2 * SharedRegion::kPage);
  ASSERT_NE(seen, nullptr);
  EXPECT_NE(seen, second);
  EXPECT_EQ(seen[4711], 0);
  std::strcpy(seen + 4711, "there");
  EXPECT_STREQ(second + 4711, "there");
}

TEST(SharedRegionTest, NothingOutsideThePiecesCanBeReached) {
  const auto region = Make(2 * SharedRegion::kPage);
  const int64_t bytes = region->name().bytes;
  EXPECT_NE(region->At(SharedRegion::kPage, 2 * SharedRegion::kPage), nullptr);
  EXPECT_NE(region->At(bytes, 0), nullptr);
  const int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const auto& [offset, length] : {std::pair<int64_t, int64_t>{0, 1},
                                       {-1, 1},
                                       {bytes, 1},
                                       {bytes + 1, 0},
                                       {kMost, kMost},
                                       {SharedRegion::kPage, 2 * SharedRegion::kPage + 1},
                                       {SharedRegion::kPage, kMost},
                                       {SharedRegion::kPage, -1}}) {
    EXPECT_EQ(region->At(offset, length), nullptr) << offset << " " << length;
  }
}

// A page that is promised but not there would kill whoever touches it, and to take pages until
// there are none left kills others: a petabyte did.
TEST(SharedRegionTest, MemoryThatIsNotThereIsRefusedAtOnce) {
  for (const int64_t bytes : {int64_t{1} << 60, int64_t{1} << 50, int64_t{-1}}) {
    const absl::Status refused = SharedRegion::Create(bytes).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("cannot take ", bytes, " bytes of shared memory: ")));
  }
}

TEST(SharedRegionTest, ItsSizeIsSealedAndOnlyItsUserMayOpenIt) {
  const auto region = Make(SharedRegion::kPage);
  const int fd = static_cast<int>(region->name().file);
  EXPECT_NE(ftruncate(fd, 0), 0);
  struct stat info;
  ASSERT_EQ(fstat(fd, &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(info.st_blocks * 512, region->name().bytes) << "pages are taken, not promised";
}

absl::Status Attached(SharedRegion::Name name) { return SharedRegion::Attach(name).status(); }

TEST(SharedRegionTest, AttachingToAnythingElseIsRefused) {
  const auto region = Make(SharedRegion::kPage);
  SharedRegion::Name name = region->name();
  ASSERT_TRUE(Attached(name).ok());

  name.nonce[3] ^= 1;
  EXPECT_THAT(std::string(Attached(name).message()), HasSubstr("other memory than was meant"));
  name = region->name();
  name.bytes += SharedRegion::kPage;
  EXPECT_THAT(std::string(Attached(name).message()), HasSubstr("bytes that were said"));
  name = region->name();
  name.file = 10'000;
  EXPECT_EQ(Attached(name).code(), absl::StatusCode::kUnavailable);
  name = region->name();
  name.process = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Attached(name).code(), absl::StatusCode::kUnavailable);
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    name = region->name();
    name.bytes = bytes;
    EXPECT_EQ(Attached(name).code(), absl::StatusCode::kInvalidArgument);
  }
  name = region->name();
  name.nonce = "short";
  EXPECT_EQ(Attached(name).code(), absl::StatusCode::kInvalidArgument);
}

// A peer may name any descriptor: one that blocks when opened, one that can be cut under us.
TEST(SharedRegionTest, AttachingToAPipeOrAFileThatCanShrinkIsRefused) {
  const auto region = Make(SharedRegion::kPage);
  SharedRegion::Name name = region->name();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  name.file = ends[0];
  EXPECT_THAT(std::string(Attached(name).message()), HasSubstr("is no memory"));
  const int loose = memfd_create("loose", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(loose, name.bytes), 0);
  name.file = loose;
  EXPECT_THAT(std::string(Attached(name).message()), HasSubstr("could still be made smaller"));
  for (const int fd : {ends[0], ends[1], loose}) close(fd);
}

// A process of its own, killed at the latest when this goes.
class Forked {
 public:
  template <typename Child>
  explicit Forked(const Child& child) : pid_(fork()) {
    if (pid_ != 0) return;
    child();
    for (;;) pause();
  }
  ~Forked() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  bool running() const { return pid_ > 0; }

 private:
  pid_t pid_;
};

TEST(SharedRegionTest, OutlivesItsKilledOwnerForWhoHoldsItAndLeavesNothingBehind) {
  const int before = FilesInDevShm();
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  Forked owner([&] {
    auto region = SharedRegion::Create(SharedRegion::kPage);
    std::strcpy(*(*region)->Carve(64), "from the dead");
    const SharedRegion::Name& name = (*region)->name();
    const int64_t numbers[] = {name.process, name.file, name.bytes};
    (void)!write(pipe_ends[1], numbers, sizeof(numbers));
    (void)!write(pipe_ends[1], name.nonce.data(), name.nonce.size());
    region->release();
  });
  ASSERT_TRUE(owner.running());
  int64_t numbers[3];
  ASSERT_EQ(read(pipe_ends[0], numbers, sizeof(numbers)), static_cast<ssize_t>(sizeof(numbers)));
  SharedRegion::Name name{numbers[0], numbers[1], numbers[2], std::string(16, '\0')};
  ASSERT_EQ(read(pipe_ends[0], name.nonce.data(), 16), 16);
  const auto held = SharedRegion::Attach(name);
  ASSERT_TRUE(held.ok()) << held.status();
  owner.Kill();
  EXPECT_STREQ((*held)->At(SharedRegion::kPage, 64), "from the dead");
  EXPECT_EQ(Attached(name).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FilesInDevShm(), before);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST(SharedRegionTest, APoolInItCountsAsOneInTheArena) {
  const auto region = Make(SharedRegion::PieceBytes(2 * 640));
  const auto arena = *Arena::Create(0);
  Pool* const pool = *arena->CarvePool("link", 600, 2, region.get());
  Slot slot = *pool->Acquire(MemoryKind::kLink);
  EXPECT_EQ(slot.pool(), pool);
  EXPECT_EQ(arena->in_use(MemoryKind::kLink), 640);
  EXPECT_NE(region->At(region->OffsetOf(slot.data()), slot.bytes()), nullptr);
  EXPECT_FALSE(arena->CarvePool("more", 64, 1, region.get()).ok());
}

}  // namespace
}  // namespace headrace
