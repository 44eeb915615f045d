#include "worker/checkpoint/slice_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SliceStoreTest : public testing::Test {
 protected:
  SliceStoreTest() : store_(*SliceStore::Open(dir_ / "snapshots")) {}

  void Reopen() {
    store_.reset();
    store_ = *SliceStore::Open(dir_ / "snapshots");
  }
  // Its hash.
  std::string Keep(const std::string& job, int64_t step, const std::string& content,
                   SliceOrigin origin = SliceOrigin::kOwn) {
    const std::string path = store_->Temporary(job, step);
    EXPECT_TRUE(WriteFileAtomically(path, content).ok());
    v1::HeldSlice slice;
    slice.set_job_id(job);
    slice.set_step(step);
    slice.set_sha256(Sha256Hex(content));
    const absl::Status kept = store_->Keep(path, slice, origin);
    EXPECT_TRUE(kept.ok()) << kept;
    return slice.sha256();
  }
  std::vector<std::string> Held() const {
    std::vector<std::string> held;
    for (const v1::HeldSlice& slice : store_->Held()) {
      held.push_back(absl::StrCat(slice.job_id(), " ", slice.step()));
    }
    return held;
  }
  int NumFiles() const {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "snapshots/0")) {
      files += entry.path().filename() != "lock";
    }
    return files;
  }

  TempDir dir_;
  std::unique_ptr<SliceStore> store_;
};

TEST_F(SliceStoreTest, FindsWhatItKeptByItsHashAlsoAfterAnotherStart) {
  const std::string hash = Keep("j1", 40, "weights");
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<std::string> path = store_->Find(hash);
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(*ReadFile(*path), "weights");
    EXPECT_EQ(store_->HeldBytes(), 7);
    EXPECT_THAT(Held(), ElementsAre("j1 40"));
    Reopen();
  }
  EXPECT_EQ(store_->Find(Sha256Hex("others")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SliceStoreTest, KeepsTheLastThreeStepsOfEachJobAndOrigin) {
  for (const int step : {10, 20, 30, 40}) {
    Keep("j1", step, absl::StrCat("own ", step));
    Keep("j1", step, absl::StrCat("own too ", step));
    if (step < 40) Keep("j1", step, absl::StrCat("a neighbour's ", step), SliceOrigin::kNeighbour);
  }
  Keep("j2", 1, "another job's");
  EXPECT_THAT(Held(), ElementsAre("j2 1", "j1 40", "j1 40", "j1 30", "j1 30", "j1 30", "j1 20",
                                  "j1 20", "j1 20", "j1 10"));
  EXPECT_EQ(NumFiles(), 10);
}

// A job that went back to step 15 had its new snapshots deleted for being of earlier steps than
// those that nobody can use any more.
TEST_F(SliceStoreTest, AJobThatWentBackKeepsWhatCameLast) {
  for (const int step : {10, 20, 30, 15}) Keep("j1", step, absl::StrCat(step));
  EXPECT_THAT(Held(), ElementsAre("j1 15", "j1 30", "j1 20"));
}

TEST_F(SliceStoreTest, TheSameSliceAgainIsOneFile) {
  Keep("j1", 10, "same");
  Keep("j1", 10, "same");
  EXPECT_EQ(NumFiles(), 1);
  Keep("j1", 10, "same", SliceOrigin::kNeighbour);
  EXPECT_THAT(Held(), ElementsAre("j1 10")) << "told once";
}

TEST_F(SliceStoreTest, DropsTheEarlierStepsOfAJob) {
  const std::string early = Keep("j1", 10, "a");
  Keep("j1", 20, "b");
  Keep("j2", 10, "c");
  store_->Drop("j1", 20);
  EXPECT_THAT(Held(), ElementsAre("j2 10", "j1 20"));
  EXPECT_FALSE(store_->Find(early).ok());
  EXPECT_EQ(NumFiles(), 2);
  store_->Drop("j1", std::numeric_limits<int64_t>::max());
  EXPECT_THAT(Held(), ElementsAre("j2 10"));
}

TEST_F(SliceStoreTest, DiscardsEveryCopyOfADamagedSlice) {
  const std::string hash = Keep("j1", 10, "a");
  Keep("j1", 10, "a", SliceOrigin::kNeighbour);
  store_->Discard(hash);
  EXPECT_EQ(NumFiles(), 0);
  EXPECT_THAT(Held(), IsEmpty());
}

TEST_F(SliceStoreTest, AStartRemovesWhatIsUnfinishedOrOlderThanADay) {
  const std::string old = Keep("j1", 10, "old"), young = Keep("j1", 20, "young");
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(*store_->Find(old), now - std::chrono::hours(25));
  std::filesystem::last_write_time(*store_->Find(young), now - std::chrono::hours(23));
  ASSERT_TRUE(WriteFileAtomically(store_->Temporary("j1", 30), "half of").ok());
  Reopen();
  EXPECT_THAT(Held(), ElementsAre("j1 20"));
  EXPECT_EQ(NumFiles(), 1);
}

TEST_F(SliceStoreTest, AFileThatSomebodyDeletedIsNotFound) {
  const std::string hash = Keep("j1", 10, "a");
  std::filesystem::remove(*store_->Find(hash));
  EXPECT_EQ(store_->Find(hash).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Held(), IsEmpty());
}

TEST_F(SliceStoreTest, RefusesWhatCouldNameAnotherFile) {
  v1::HeldSlice good;
  good.set_job_id("j1");
  good.set_step(3);
  good.set_sha256(Sha256Hex("x"));
  std::vector<v1::HeldSlice> bad(5, good);
  bad[0].set_job_id("../j1");
  bad[1].set_job_id("");
  bad[2].set_job_id("j.1");
  bad[3].set_step(-1);
  bad[4].set_sha256("../../etc/passwd");
  for (const v1::HeldSlice& slice : bad) {
    const std::string path = store_->Temporary(slice.job_id(), slice.step());
    EXPECT_THAT(path, HasSubstr("/snapshots/0/j"));
    ASSERT_TRUE(WriteFileAtomically(path, "x").ok());
    EXPECT_EQ(store_->Keep(path, slice).code(), absl::StatusCode::kInvalidArgument)
        << slice.ShortDebugString();
    std::filesystem::remove(path);
  }
  EXPECT_EQ(NumFiles(), 0);
}

TEST_F(SliceStoreTest, SaysWhenTheDiskHasNoRoom) {
  EXPECT_TRUE(store_->HasRoom(1));
  EXPECT_FALSE(store_->HasRoom(std::numeric_limits<int64_t>::max()));
  const auto space = std::filesystem::space(dir_ / "snapshots");
  EXPECT_FALSE(store_->HasRoom(static_cast<int64_t>(space.available)));
}

TEST_F(SliceStoreTest, TwoProcessesOfOneFolderKeepApart) {
  const auto other = SliceStore::Open(dir_ / "snapshots");
  ASSERT_TRUE(other.ok()) << other.status();
  Keep("j1", 10, "a");
  EXPECT_THAT((*other)->Held(), IsEmpty());
  EXPECT_THAT((*other)->Temporary("j1", 1), HasSubstr("/snapshots/1/"));
}

TEST_F(SliceStoreTest, ManyThreadsKeepFindAndDrop) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int step = 1; step <= 50; ++step) {
        const std::string hash = Keep(absl::StrCat("j", t), step, absl::StrCat(t, " ", step));
        EXPECT_TRUE(store_->Find(hash).ok());
        store_->Drop(absl::StrCat("j", t), step - 1);
        store_->Held();
        store_->HeldBytes();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(NumFiles(), 8) << "two steps of each";
}

}  // namespace
}  // namespace headrace
