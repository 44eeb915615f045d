#include "worker/checkpoint/snapshotter.h"

#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/safetensors.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(60);

// A snapshotter of two floats, with places and reports played by the test.
class SnapshotterTest : public ::testing::Test {
 protected:
  ~SnapshotterTest() override {
    Open();
    snapshotter_.reset();
  }

  void Start(bool simulated = false, bool with_neighbour = true) {
    SnapshotSource source;
    source.job_id = "j1";
    source.first_layer = 2;
    source.end_layer = 4;
    source.simulated = simulated;
    if (!simulated) {
      const int64_t count = static_cast<int64_t>(values_.size());
      source.state.push_back({"w", 2, {values_.data(), ElementType::kFloat32, {count}}});
    }
    source.device = device_.get();
    source.slices = store_.get();
    source.cancellation = &cancellation_;
    SnapshotPlaces places;
    if (with_neighbour) places.neighbour = "w2";
    places.send = [this](int64_t step, const v1::WeightsSlice& slice, const std::string& path) {
      return Arrive("sent", step, slice, path);
    };
    places.store = [this](int64_t step, v1::WeightsSlice* slice, const std::string& path) {
      if (!uri_.empty()) slice->set_uri(uri_);
      return Arrive("stored", step, *slice, path);
    };
    SnapshotReports reports;
    reports.snapshot = [this](const v1::StageSnapshot& snapshot) {
      absl::MutexLock lock(&mu_);
      reports_.push_back(snapshot);
    };
    reports.log = [this](const std::string& line) {
      absl::MutexLock lock(&mu_);
      log_.push_back(line);
    };
    snapshotter_ =
        std::make_unique<Snapshotter>(std::move(source), std::move(places), std::move(reports));
  }

  absl::Status Arrive(const char* how, int64_t step, const v1::WeightsSlice& slice,
                      const std::string& path) {
    EXPECT_EQ(Sha256Hex(*ReadFile(path)), slice.sha256());
    EXPECT_EQ(static_cast<int64_t>(ReadFile(path)->size()), slice.size_bytes());
    absl::MutexLock lock(&mu_);
    arrived_.push_back(absl::StrCat(how, " ", step));
    const auto open = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return open_; };
    while (!mu_.AwaitWithTimeout(absl::Condition(&open), absl::Milliseconds(5))) {
      if (cancellation_.cancelled()) return absl::CancelledError("told to stop");
    }
    return failure_;
  }
  // Places take in what comes to them, or let it wait.
  void Shut() {
    absl::MutexLock lock(&mu_);
    open_ = false;
  }
  void Open() {
    absl::MutexLock lock(&mu_);
    open_ = true;
  }
  void AwaitArrived(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return arrived_.size() >= count; };
    ASSERT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), kPatience));
  }
  void AwaitIdle() {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!snapshotter_->progress().idle) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  // Each report in a word or two.
  std::vector<std::string> Reports() {
    absl::MutexLock lock(&mu_);
    std::vector<std::string> words;
    for (const v1::StageSnapshot& report : reports_) {
      words.push_back(absl::StrCat(report.step(), report.has_slice() ? "" : " no slice",
                                   report.in_store() ? " stored" : "",
                                   report.holder().empty() ? "" : " at " + report.holder(),
                                   report.failed().empty() ? "" : " failed"));
    }
    return words;
  }
  int NumFiles() const {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "snapshots/0")) {
      files += entry.path().filename() != "lock";
    }
    return files;
  }

  const TempDir dir_;
  std::vector<float> values_ = {1, 2};
  const std::unique_ptr<ComputeDevice> device_ = HostDevice(*Arena::Create(0), CreateCpuOps(1));
  std::unique_ptr<SliceStore> store_ = *SliceStore::Open(dir_ / "snapshots");
  Cancellation cancellation_;
  std::string uri_;

  absl::Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> arrived_ ABSL_GUARDED_BY(mu_), log_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::StageSnapshot> reports_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Snapshotter> snapshotter_;
};

TEST_F(SnapshotterTest, ACheckpointIsHeldHereAndThenInTheStore) {
  uri_ = "file:///somewhere";
  Start();
  snapshotter_->Take(12, /*checkpoint=*/true);
  ASSERT_TRUE(snapshotter_->Finish(absl::Now() + kPatience).ok());
  EXPECT_THAT(Reports(), ElementsAre("12", "12 stored"));
  absl::MutexLock lock(&mu_);
  EXPECT_THAT(arrived_, ElementsAre("stored 12"));
  EXPECT_EQ(reports_[0].slice().uri(), "");
  EXPECT_EQ(reports_[1].slice().uri(), "file:///somewhere");
  EXPECT_EQ(reports_[1].slice().first_layer(), 2);
  EXPECT_EQ(reports_[1].slice().end_layer(), 4);
  EXPECT_GT(reports_[1].copy_s(), 0);
  EXPECT_GE(reports_[1].write_s(), reports_[0].write_s());
  const std::string path = *store_->Find(reports_[0].slice().sha256());
  EXPECT_EQ((*SafetensorsFile::Open(path))->tensors()[0].data[1], 2);
}

TEST_F(SnapshotterTest, ASnapshotGoesToTheNeighbourIfThereIsOne) {
  Start();
  snapshotter_->Take(3, /*checkpoint=*/false);
  AwaitIdle();
  EXPECT_THAT(Reports(), ElementsAre("3", "3 at w2"));
}

TEST_F(SnapshotterTest, ASnapshotStaysHereWithoutNeighbour) {
  Start(/*simulated=*/false, /*with_neighbour=*/false);
  snapshotter_->Take(3, false);
  AwaitIdle();
  EXPECT_THAT(Reports(), ElementsAre("3"));
  absl::MutexLock lock(&mu_);
  EXPECT_THAT(arrived_, IsEmpty());
}

// What is written is the state as it was: the stage computes on meanwhile.
TEST_F(SnapshotterTest, TrainingGoesOnWhileAStoreIsSlow) {
  Start();
  Shut();
  snapshotter_->Take(1, true);
  values_ = {5, 6};
  AwaitArrived(1);
  EXPECT_FALSE(snapshotter_->progress().idle);
  EXPECT_TRUE(snapshotter_->progress().takes_checkpoint) << "small ones never wait for each other";
  EXPECT_GT(snapshotter_->progress().copy, absl::ZeroDuration());
  snapshotter_->Take(2, true);
  EXPECT_TRUE(absl::IsDeadlineExceeded(snapshotter_->Finish(absl::Now())));
  Open();
  EXPECT_TRUE(snapshotter_->Finish(absl::Now() + kPatience).ok());
  EXPECT_THAT(Reports(), ElementsAre("1", "1 stored", "2", "2 stored"));
  absl::MutexLock lock(&mu_);
  const std::string first = *store_->Find(reports_[0].slice().sha256());
  EXPECT_EQ((*SafetensorsFile::Open(first))->tensors()[0].data[1], 2);
  const std::string second = *store_->Find(reports_[2].slice().sha256());
  EXPECT_EQ((*SafetensorsFile::Open(second))->tensors()[0].data[1], 6);
}

TEST_F(SnapshotterTest, LargeOnesDoNotPileUp) {
  values_.assign(Snapshotter::kSmallBytes / sizeof(float) * 5 / 8, 0);
  Start();
  Shut();
  snapshotter_->Take(1, false);
  EXPECT_TRUE(snapshotter_->progress().takes_checkpoint) << "only a neighbour's is on its way";
  snapshotter_->Take(2, true);
  EXPECT_FALSE(snapshotter_->progress().takes_checkpoint);
  snapshotter_->Take(3, true);
  snapshotter_->Take(4, true);
  absl::MutexLock lock(&mu_);
  std::string failed;
  for (const v1::StageSnapshot& report : reports_) {
    if (report.step() == 4) failed = report.failed();
  }
  EXPECT_EQ(failed, "those after 3 earlier steps, from step 1 on, are still being written");
}

TEST_F(SnapshotterTest, WhatKeepsACheckpointFromTheStoreIsToldOnceInTheLog) {
  Start();
  {
    absl::MutexLock lock(&mu_);
    failure_ = absl::ResourceExhaustedError("the store is full");
  }
  snapshotter_->Take(1, true);
  snapshotter_->Take(2, true);
  EXPECT_EQ(snapshotter_->Finish(absl::Now() + kPatience).message(), "the store is full");
  EXPECT_THAT(Reports(), ElementsAre("1", "1 no slice failed", "2", "2 no slice failed"));
  {
    absl::MutexLock lock(&mu_);
    EXPECT_EQ(reports_[1].failed(), "the store is full");
    EXPECT_THAT(log_, ElementsAre("the checkpoint after step 1 did not get through: "
                                  "the store is full"));
    failure_ = absl::OkStatus();
  }
  snapshotter_->Take(3, true);
  EXPECT_TRUE(snapshotter_->Finish(absl::Now() + kPatience).ok()) << "the last one counts";
}

TEST_F(SnapshotterTest, ADiskWithoutRoomIsToldAndTrainingGoesOn) {
  std::filesystem::remove_all(dir_ / "snapshots/0");  // of which nothing is free, then
  Start();
  snapshotter_->Take(1, true);
  EXPECT_THAT(Reports(), ElementsAre("1 no slice failed"));
  EXPECT_EQ(snapshotter_->Finish(absl::Now() + kPatience).message(),
            "no room on the worker's disk for 8 B");
}

// A disk that fills up just then.
TEST_F(SnapshotterTest, AFileThatDoesNotFitIsToldAndRemoved) {
  values_.assign(1000, 0);
  Start();
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 2000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  snapshotter_->Take(1, true);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(Reports(), ElementsAre("1 no slice failed"));
  EXPECT_THAT(std::string(snapshotter_->Finish(absl::Now() + kPatience).message()),
              HasSubstr("cannot write"));
  EXPECT_EQ(NumFiles(), 0);
  snapshotter_->Take(2, true);
  EXPECT_TRUE(snapshotter_->Finish(absl::Now() + kPatience).ok()) << "once there is room again";
}

TEST_F(SnapshotterTest, AWorkerWithoutASliceStoreSaysSo) {
  store_.reset();
  Start();
  snapshotter_->Take(1, true);
  absl::MutexLock lock(&mu_);
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].failed(), "this worker keeps no snapshots");
}

TEST_F(SnapshotterTest, AtTheEndOnlyCheckpointsAreWaitedFor) {
  Start();
  Shut();
  snapshotter_->Take(1, true);
  AwaitArrived(1);
  snapshotter_->Take(2, false);
  EXPECT_TRUE(absl::IsDeadlineExceeded(snapshotter_->Finish(absl::Now())));
  Open();
  EXPECT_TRUE(snapshotter_->Finish(absl::Now() + kPatience).ok());
  EXPECT_THAT(Reports(), ElementsAre("1", "1 stored"));
}

TEST_F(SnapshotterTest, AStageThatIsStoppedLeavesNothingBehind) {
  Start();
  Shut();
  snapshotter_->Take(1, true);
  AwaitArrived(1);
  snapshotter_->Take(2, true);
  cancellation_.Cancel();
  EXPECT_TRUE(absl::IsCancelled(snapshotter_->Finish(absl::Now() + kPatience)));
  EXPECT_THAT(Reports(), ElementsAre("1")) << "and no failure of anybody's";
  snapshotter_.reset();
  EXPECT_EQ(NumFiles(), 1) << "the slice of step 1, which is whole";
}

TEST_F(SnapshotterTest, GoingDropsWhatIsNotWritten) {
  Start();
  Shut();
  snapshotter_->Take(1, true);
  AwaitArrived(1);
  snapshotter_->Take(2, true);
  snapshotter_.reset();
  EXPECT_EQ(NumFiles(), 1);
}

TEST_F(SnapshotterTest, ASimulatedStageHasNothingToWrite) {
  Start(/*simulated=*/true);
  snapshotter_->Take(1, true);
  snapshotter_->Take(2, false);
  EXPECT_THAT(Reports(), ElementsAre("1 no slice stored", "2 no slice"));
  EXPECT_TRUE(snapshotter_->progress().idle);
  EXPECT_EQ(NumFiles(), 0);
}

}  // namespace
}  // namespace headrace
