// Checkpoints in the store: their rows, what they keep alive, and what goes with them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/sha256.h"
#include "coordinator/store/shared_folder.h"
#include "coordinator/store/store.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class CheckpointStoreTest : public ::testing::Test {
 protected:
  CheckpointStoreTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/checkpoint_store_", info->name());
    std::filesystem::remove_all(folder_);
    Reopen();
  }
  ~CheckpointStoreTest() override { std::filesystem::remove_all(folder_); }

  void Reopen() {
    store_.reset();
    auto opened = Store::Open(folder_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  JobStore& jobs() { return store_->jobs(); }

  // Returns its hash.
  std::string Upload(const std::string& content) {
    const std::string sha256 = Sha256Hex(content);
    auto writer = store_->blobs().StartUpload(sha256, static_cast<int64_t>(content.size()), 0);
    if (absl::IsAlreadyExists(writer.status())) return sha256;
    EXPECT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE((*writer)->Append(content).ok());
    EXPECT_TRUE((*writer)->Commit().ok());
    return sha256;
  }
  bool HasBlob(const std::string& content) {
    return store_->blobs().Stat(Sha256Hex(content))->complete;
  }
  // As if it had been sent long ago.
  void Age(const std::string& content, absl::Duration age) {
    const timespec time = absl::ToTimespec(absl::Now() - age);
    const timespec times[2] = {time, time};
    const std::string path = *store_->blobs().Path(Sha256Hex(content));
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  void SaveJob(const std::string& id, const std::string& data = "",
               const std::string& weights = "") {
    v1::Job job;
    job.set_id(id);
    job.set_name(id);
    job.set_state(v1::JOB_STATE_RUNNING);
    if (!data.empty()) job.mutable_dataset()->set_sha256(Sha256Hex(data));
    if (!weights.empty()) job.add_weights()->set_sha256(Sha256Hex(weights));
    ASSERT_TRUE(jobs().SaveJob(job, {}).ok());
  }
  // A slice for each content.
  static v1::Checkpoint Make(int64_t step, const std::vector<std::string>& contents) {
    v1::Checkpoint checkpoint;
    checkpoint.set_step(step);
    checkpoint.set_generation(1);
    for (const std::string& content : contents) {
      v1::WeightsSlice* slice = checkpoint.add_slices();
      slice->set_sha256(Sha256Hex(content));
      slice->set_size_bytes(static_cast<int64_t>(content.size()));
      slice->add_holder_addresses("127.0.0.1:1");
    }
    return checkpoint;
  }
  void Save(const std::string& job, int64_t step, const std::vector<std::string>& contents) {
    for (const std::string& content : contents) Upload(content);
    const absl::Status saved = jobs().SaveCheckpoint(job, Make(step, contents));
    ASSERT_TRUE(saved.ok()) << saved;
  }
  std::vector<int64_t> Steps(const std::string& job) {
    std::vector<int64_t> steps;
    const auto stored = jobs().LoadJob(job);
    EXPECT_TRUE(stored.ok()) << stored.status();
    for (const v1::Checkpoint& each : stored->job.checkpoints()) steps.push_back(each.step());
    return steps;
  }
  // As the driver does.
  void RemoveDoomed() {
    const auto doomed = jobs().LoadDoomed();
    ASSERT_TRUE(doomed.ok()) << doomed.status();
    for (const std::string& name : *doomed) {
      const absl::Status removed = store_->RemoveDoomed(name);
      ASSERT_TRUE(removed.ok()) << removed;
      ASSERT_TRUE(jobs().ForgetDoomed(name).ok());
    }
  }

  std::string folder_;
  std::unique_ptr<Store> store_;
};

TEST_F(CheckpointStoreTest, GivesThemBackWithTheirJobAscendingAndWithoutHolders) {
  SaveJob("j1");
  Save("j1", 20, {"c", "d"});
  Save("j1", 10, {"a", "b"});
  Reopen();
  EXPECT_THAT(Steps("j1"), ElementsAre(10, 20));
  const v1::Checkpoint first = jobs().LoadJob("j1")->job.checkpoints(0);
  EXPECT_EQ(first.generation(), 1);
  ASSERT_EQ(first.slices_size(), 2);
  EXPECT_EQ(first.slices(1).sha256(), Sha256Hex("b"));
  EXPECT_EQ(first.slices(1).holder_addresses_size(), 0);
  EXPECT_EQ(jobs().LoadLiving()->at(0).job.checkpoints_size(), 2);
  EXPECT_EQ(jobs().ListJobs()->at(0).checkpoints_size(), 0);
}

// The machine saves a job as it knows it, and that need not have its checkpoints in it.
TEST_F(CheckpointStoreTest, SavingTheJobLeavesThemAlone) {
  SaveJob("j1");
  Save("j1", 10, {"a"});
  SaveJob("j1");
  v1::Job job = jobs().LoadJob("j1")->job;
  job.mutable_checkpoints()->Clear();
  *job.add_checkpoints() = Make(99, {});
  ASSERT_TRUE(jobs().SaveJob(job, {}).ok());
  EXPECT_THAT(Steps("j1"), ElementsAre(10));
}

TEST_F(CheckpointStoreTest, DroppingOneDeletesWhatOnlyItUsed) {
  Upload("data");
  SaveJob("j1", "data");
  Save("j1", 10, {"a", "shared"});
  Save("j1", 20, {"b", "shared"});
  ASSERT_TRUE(jobs().DropCheckpoints("j1", {10, 15}).ok());
  EXPECT_THAT(Steps("j1"), ElementsAre(20));
  EXPECT_TRUE(HasBlob("a")) << "rows go first, files after";
  EXPECT_THAT(*jobs().LoadDoomed(), ElementsAre(Sha256Hex("a")));
  const int64_t bytes = store_->blobs().total_bytes();
  RemoveDoomed();
  EXPECT_FALSE(HasBlob("a"));
  EXPECT_TRUE(HasBlob("b"));
  EXPECT_TRUE(HasBlob("shared"));
  EXPECT_TRUE(HasBlob("data"));
  EXPECT_EQ(store_->blobs().total_bytes(), bytes - 1);
  EXPECT_THAT(*jobs().LoadDoomed(), IsEmpty());
}

TEST_F(CheckpointStoreTest, KeepsWhatAnotherJobsCheckpointDataOrWeightsAre) {
  SaveJob("j1");
  Save("j1", 10, {"a", "b", "c"});
  SaveJob("j2", /*data=*/"b", /*weights=*/"c");
  Save("j2", 10, {"a"});
  ASSERT_TRUE(jobs().DropCheckpoints("j1", {10}).ok());
  EXPECT_THAT(*jobs().LoadDoomed(), IsEmpty());
  ASSERT_TRUE(jobs().DropCheckpoints("j2", {10}).ok());
  EXPECT_THAT(*jobs().LoadDoomed(), ElementsAre(Sha256Hex("a")));
}

TEST_F(CheckpointStoreTest, ReplacingOneDoomsWhatTheNewOneHasNot) {
  SaveJob("j1");
  Save("j1", 10, {"a", "b"});
  Save("j1", 10, {"b", "c"});
  EXPECT_THAT(Steps("j1"), ElementsAre(10));
  EXPECT_THAT(*jobs().LoadDoomed(), ElementsAre(Sha256Hex("a")));
  Save("j1", 20, {"a"});
  EXPECT_THAT(*jobs().LoadDoomed(), IsEmpty()) << "used again before it was deleted";
}

TEST_F(CheckpointStoreTest, WhatIsNotCommittedDoomsNothing) {
  SaveJob("j1");
  Save("j1", 10, {"a"});
  ASSERT_TRUE(jobs().Begin().ok());
  ASSERT_TRUE(jobs().DropCheckpoints("j1", {10}).ok());
  jobs().Rollback();
  EXPECT_THAT(*jobs().LoadDoomed(), IsEmpty());
  EXPECT_THAT(Steps("j1"), ElementsAre(10));
  EXPECT_TRUE(*jobs().IsUsed(Sha256Hex("a")));
}

// The coordinator was killed after the rows were gone and before the files were.
TEST_F(CheckpointStoreTest, DeletesAfterARestartWhatWasDoomedBefore) {
  SaveJob("j1");
  Save("j1", 10, {"a"});
  ASSERT_TRUE(jobs().DropCheckpoints("j1", {10}).ok());
  Reopen();
  EXPECT_TRUE(HasBlob("a"));
  RemoveDoomed();
  EXPECT_FALSE(HasBlob("a"));
  // And if it was killed right after that.
  ASSERT_TRUE(jobs().DropCheckpoints("j1", {10}).ok());
  EXPECT_TRUE(store_->RemoveDoomed(Sha256Hex("a")).ok());
}

TEST_F(CheckpointStoreTest, DeletesNoBlobThatSomebodyUploadsAndNoneThatIsUsedAgain) {
  SaveJob("j1");
  Save("j1", 10, {"a"});
  ASSERT_TRUE(jobs().DropCheckpoints("j1", {10}).ok());
  Save("j1", 20, {"a"});
  EXPECT_TRUE(store_->RemoveDoomed(Sha256Hex("a")).ok());
  EXPECT_TRUE(HasBlob("a"));
  const auto upload = store_->blobs().StartUpload(Sha256Hex("half"), 4, 0);
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_EQ(store_->RemoveDoomed(Sha256Hex("half")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CheckpointStoreTest, SweepsOldBlobsThatNothingUses) {
  for (const char* content : {"orphan", "young", "data", "weights", "asked for"}) Upload(content);
  SaveJob("j1", "data", "weights");
  Save("j1", 10, {"slice"});
  for (const char* content : {"orphan", "data", "weights", "asked for", "slice"}) {
    Age(content, Store::kOrphansKept + absl::Minutes(1));
  }
  Age("young", Store::kOrphansKept - absl::Minutes(1));
  EXPECT_EQ(store_->blobs().StartUpload(Sha256Hex("asked for"), 9, 0).status().code(),
            absl::StatusCode::kAlreadyExists);
  const auto swept = store_->SweepOrphans(absl::Now());
  ASSERT_TRUE(swept.ok()) << swept.status();
  EXPECT_EQ(*swept, 1);
  EXPECT_FALSE(HasBlob("orphan"));
  for (const char* content : {"young", "data", "weights", "asked for", "slice"}) {
    EXPECT_TRUE(HasBlob(content)) << content;
  }
}

TEST_F(CheckpointStoreTest, RefusesACheckpointOfNoJobAndOfNoStep) {
  SaveJob("j1");
  EXPECT_FALSE(jobs().SaveCheckpoint("j2", Make(1, {})).ok());
  EXPECT_EQ(jobs().SaveCheckpoint("j1", Make(-1, {})).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(jobs().DropCheckpoints("j1", {-2}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointStoreTest, LoadsTheLastStepsForWhoeverGoesOn) {
  SaveJob("j1");
  ASSERT_TRUE(jobs().Begin().ok());
  v1::StepResult step;
  step.add_stage_seconds()->set_wall(1);
  for (int64_t i = 1; i <= JobStore::kLastSteps + 5; ++i) {
    step.set_step(i);
    step.set_loss(1.0 / static_cast<double>(i));
    ASSERT_TRUE(jobs().SaveStep("j1", step).ok());
  }
  ASSERT_TRUE(jobs().Commit().ok());
  const auto stored = jobs().LoadToGoOn("j1");
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_EQ(stored->job.steps_size(), JobStore::kLastSteps);
  EXPECT_EQ(stored->job.steps(0).step(), 6);
  EXPECT_EQ(stored->job.steps().rbegin()->step(), JobStore::kLastSteps + 5);
  EXPECT_EQ(stored->job.steps(0).stage_seconds_size(), 0);
  EXPECT_EQ(jobs().LoadLiving()->at(0).job.steps_size(), JobStore::kLastSteps);
  EXPECT_EQ(jobs().LoadJob("j1")->job.steps_size(), 0);
}

// Once more stages than now: the records of those that are no more stayed behind.
TEST_F(CheckpointStoreTest, ForgetsFlightRecordsOfAnEarlierEnd) {
  v1::Job job;
  job.set_id("j1");
  for (int i = 0; i < 3; ++i) job.add_flight_records()->set_stage(i);
  ASSERT_TRUE(jobs().SaveJob(job, {}).ok());
  EXPECT_EQ(jobs().LoadJob("j1")->job.flight_records_size(), 3);
  job.mutable_flight_records()->DeleteSubrange(1, 2);
  ASSERT_TRUE(jobs().SaveJob(job, {}).ok());
  EXPECT_EQ(jobs().LoadJob("j1")->job.flight_records_size(), 1);
}

constexpr char kSchema1[] = R"sql(
CREATE TABLE jobs (number INTEGER PRIMARY KEY, name BLOB NOT NULL, state INTEGER NOT NULL,
                   step INTEGER NOT NULL, job BLOB NOT NULL, options BLOB NOT NULL);
CREATE INDEX jobs_by_name ON jobs (name, number);
CREATE TABLE plans (job INTEGER NOT NULL REFERENCES jobs, generation INTEGER NOT NULL,
                    plan BLOB NOT NULL, PRIMARY KEY (job, generation)) WITHOUT ROWID;
CREATE TABLE steps (job INTEGER NOT NULL REFERENCES jobs, step INTEGER NOT NULL,
                    result BLOB NOT NULL, PRIMARY KEY (job, step)) WITHOUT ROWID;
CREATE TABLE events (job INTEGER NOT NULL REFERENCES jobs, id INTEGER NOT NULL,
                     event BLOB NOT NULL, PRIMARY KEY (job, id)) WITHOUT ROWID;
CREATE TABLE tensor_hashes (job INTEGER NOT NULL REFERENCES jobs, id INTEGER NOT NULL,
                            step INTEGER NOT NULL, hashes BLOB NOT NULL,
                            PRIMARY KEY (job, id)) WITHOUT ROWID;
CREATE TABLE flight_records (job INTEGER NOT NULL REFERENCES jobs, place INTEGER NOT NULL,
                             record BLOB NOT NULL, PRIMARY KEY (job, place)) WITHOUT ROWID;
PRAGMA user_version=1;
)sql";

TEST_F(CheckpointStoreTest, OpensADatabaseFromBeforeCheckpoints) {
  const std::string data = Upload("data"), weights = Upload("weights");
  Upload("orphan");
  for (const char* content : {"data", "weights", "orphan"}) {
    Age(content, Store::kOrphansKept + absl::Minutes(1));
  }
  store_.reset();
  std::filesystem::remove(folder_ + "/headrace.db");
  {
    auto old = Database::Open(folder_ + "/headrace.db", 0x48524345);
    ASSERT_TRUE(old.ok()) << old.status();
    ASSERT_TRUE((*old)->Execute(kSchema1).ok());
    v1::Job job;
    job.set_id("j1");
    job.set_name("old");
    job.set_state(v1::JOB_STATE_DONE);
    job.mutable_dataset()->set_sha256(data);
    job.add_weights()->set_sha256(weights);
    auto insert = (*old)->Prepare("INSERT INTO jobs VALUES (1, ?, 5, 7, ?, ?)");
    ASSERT_TRUE(insert.ok()) << insert.status();
    insert->Bind(1, job.name()).Bind(2, job.SerializeAsString()).Bind(3, "");
    ASSERT_TRUE(insert->Run().ok());
    ASSERT_TRUE((*old)->Execute("INSERT INTO steps VALUES (1, 7, x'0807')").ok());
  }
  for (int open = 0; open < 2; ++open) {
    Reopen();
    const auto stored = jobs().LoadJob(*jobs().FindJob("old"));
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(stored->job.step(), 7);
    EXPECT_EQ(jobs().LoadSteps("j1", 0, 0)->at(0).step(), 7);
  }
  // What its jobs use is known to be used.
  ASSERT_EQ(*store_->SweepOrphans(absl::Now()), 1);
  EXPECT_TRUE(HasBlob("data"));
  EXPECT_TRUE(HasBlob("weights"));
  EXPECT_FALSE(HasBlob("orphan"));
  Save("j1", 7, {"slice"});
  EXPECT_THAT(Steps("j1"), ElementsAre(7));
}

class SharedFolderTest : public CheckpointStoreTest {
 protected:
  // Written there, as a worker does.
  v1::WeightsSlice Share(const std::string& content) {
    const std::string sha256 = Sha256Hex(content);
    const std::string step = folder_ + "/shared/j1/10";
    EXPECT_TRUE(MakeDirectories(step).ok());
    const std::string path = absl::StrCat(step, "/0-4-", sha256, ".safetensors");
    EXPECT_TRUE(WriteFileAtomically(path, content).ok());
    v1::WeightsSlice slice;
    slice.set_sha256(sha256);
    slice.set_size_bytes(static_cast<int64_t>(content.size()));
    slice.set_uri("file://" + path);
    return slice;
  }
  absl::Status Check(const v1::WeightsSlice& slice) { return CheckSharedSlice(slice, stop_); }

  std::atomic<bool> stop_ = false;
};

TEST_F(SharedFolderTest, TellsAWholeSliceFromATornOneAndFromNone) {
  const v1::WeightsSlice slice = Share("content");
  const std::string path = *PathOfUri(slice.uri());
  EXPECT_TRUE(Check(slice).ok());
  ASSERT_TRUE(WriteFileAtomically(path, "cOntent").ok());
  EXPECT_EQ(Check(slice).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Check(slice).message()), HasSubstr(path));
  ASSERT_TRUE(WriteFileAtomically(path, "conten").ok());
  EXPECT_EQ(Check(slice).code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(path);
  EXPECT_EQ(Check(slice).code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(Check(slice).code(), absl::StatusCode::kDataLoss) << "a pipe is no slice";
}

TEST_F(SharedFolderTest, StopsReading) {
  const v1::WeightsSlice slice = Share("content");
  stop_ = true;
  EXPECT_EQ(Check(slice).code(), absl::StatusCode::kCancelled);
}

TEST_F(SharedFolderTest, MakesNoPathOfWhatIsNoFileUri) {
  for (const char* uri : {"", "s3://bucket/x", "file:x", "file://x", "file:///a/../b", "/a/b"}) {
    EXPECT_EQ(PathOfUri(uri).status().code(), absl::StatusCode::kInvalidArgument) << uri;
  }
  EXPECT_EQ(*PathOfUri("file:///a/b..c"), "/a/b..c");
}

TEST_F(SharedFolderTest, DroppingACheckpointDeletesItsFilesAndEmptyFolders) {
  SaveJob("j1");
  v1::Checkpoint checkpoint = Make(10, {});
  *checkpoint.add_slices() = Share("a");
  *checkpoint.add_slices() = Share("b");
  ASSERT_TRUE(jobs().SaveCheckpoint("j1", checkpoint).ok());
  std::ofstream(folder_ + "/shared/notes") << "somebody else's";
  ASSERT_TRUE(jobs().DropCheckpoints("j1", {10}).ok());
  EXPECT_THAT(*jobs().LoadDoomed(),
              UnorderedElementsAre(checkpoint.slices(0).uri(), checkpoint.slices(1).uri()));
  RemoveDoomed();
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/shared/j1"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/shared/notes"));
}

// A job that began from another's checkpoint uses the other's files.
TEST_F(SharedFolderTest, KeepsFilesOfACheckpointThatAnotherJobTookOver) {
  SaveJob("j1");
  SaveJob("j2");
  v1::Checkpoint checkpoint = Make(10, {});
  *checkpoint.add_slices() = Share("a");
  for (const char* job : {"j1", "j2"}) ASSERT_TRUE(jobs().SaveCheckpoint(job, checkpoint).ok());
  ASSERT_TRUE(jobs().DropCheckpoints("j1", {10}).ok());
  RemoveDoomed();
  EXPECT_TRUE(Check(checkpoint.slices(0)).ok());
}

}  // namespace
}  // namespace headrace
