#include "coordinator/store/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "coordinator/store/store.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

class JobStoreTest : public ::testing::Test {
 protected:
  JobStoreTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "/job_store_" + info->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ + "/headrace.db";
  }
  ~JobStoreTest() override { std::filesystem::remove_all(folder_); }

  void Open() {
    store_.reset();
    auto opened = JobStore::Open(path_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  static v1::Job MakeJob(int64_t number, const std::string& name, v1::JobState state) {
    v1::Job job;
    job.set_id(absl::StrCat("j", number));
    job.set_name(name);
    job.set_state(state);
    return job;
  }

  void Save(const v1::Job& job) {
    ASSERT_TRUE(store_->Begin().ok());
    ASSERT_TRUE(store_->SaveJob(job, v1::JobOptions()).ok());
    ASSERT_TRUE(store_->Commit().ok());
  }

  std::string folder_, path_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(JobStoreTest, KeepsTheLatestCostOfALayerOnADevice) {
  Open();
  const auto save = [&](const std::string& device, const std::string& layer, double forward_s) {
    StoredLayerCost cost{device, layer, {}};
    cost.seconds.set_forward_s(forward_s);
    ASSERT_TRUE(store_->SaveLayerCost(cost).ok());
  };
  save("a, 1 thread", "block", 1);
  save("a, 2 threads", "block", 2);
  save("a, 1 thread", "head", 3);
  save("a, 1 thread", "block", 4);
  Open();
  const auto costs = store_->LoadLayerCosts();
  ASSERT_TRUE(costs.ok()) << costs.status();
  std::string all;
  for (const StoredLayerCost& cost : *costs) {
    absl::StrAppend(&all, cost.device, " ", cost.layer, " ", cost.seconds.forward_s(), "; ");
  }
  EXPECT_EQ(all, "a, 2 threads block 2; a, 1 thread head 3; a, 1 thread block 4; ");
}

TEST_F(JobStoreTest, DropsTheOldestLayerCosts) {
  Open();
  ASSERT_TRUE(store_->Begin().ok());
  for (int i = 0; i < JobStore::kKeptLayerCosts + 3; ++i) {
    ASSERT_TRUE(store_->SaveLayerCost({"a", absl::StrCat(i), {}}).ok());
  }
  ASSERT_TRUE(store_->Commit().ok());
  const auto costs = store_->LoadLayerCosts();
  ASSERT_TRUE(costs.ok()) << costs.status();
  ASSERT_EQ(costs->size(), size_t{JobStore::kKeptLayerCosts});
  EXPECT_EQ(costs->front().layer, "3");
}

TEST_F(JobStoreTest, GivesBackAWholeJobAfterReopening) {
  Open();
  v1::Job job = MakeJob(1, "bible", v1::JOB_STATE_RUNNING);
  job.set_generation(1);
  job.mutable_plan()->set_stages(2);
  job.add_flight_records()->add_entries("F 3");
  v1::JobOptions options;
  options.set_hash_tensors(true);
  ASSERT_TRUE(store_->Begin().ok());
  ASSERT_TRUE(store_->SaveJob(job, options).ok());
  v1::StepResult step;
  step.set_step(1);
  step.set_loss(5.5);
  ASSERT_TRUE(store_->SaveStep("j1", step).ok());
  ASSERT_TRUE(store_->Commit().ok());

  Open();
  const auto loaded = store_->LoadJob("j1");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->job.plan().stages(), 2);
  EXPECT_EQ(loaded->job.flight_records(0).entries(0), "F 3");
  EXPECT_EQ(loaded->job.step(), 1);
  EXPECT_TRUE(loaded->options.hash_tensors());
  EXPECT_EQ(store_->LoadSteps("j1", 0, 0)->at(0).loss(), 5.5);
  EXPECT_EQ(*store_->LastJobNumber(), 1);
}

TEST_F(JobStoreTest, FindsTheLatestJobOfAName) {
  Open();
  Save(MakeJob(1, "bible", v1::JOB_STATE_DONE));
  Save(MakeJob(2, "other", v1::JOB_STATE_DONE));
  Save(MakeJob(3, "bible", v1::JOB_STATE_DONE));
  EXPECT_EQ(*store_->FindJob("bible"), "j3");
  EXPECT_EQ(*store_->FindJob("j1"), "j1");
  EXPECT_EQ(store_->FindJob("j4").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->FindJob("").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->FindJob("j99999999999999999999").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(JobStoreTest, TakesAJobNamedLikeAnIdOfAnother) {
  Open();
  Save(MakeJob(1, "j7", v1::JOB_STATE_DONE));
  EXPECT_EQ(*store_->FindJob("j7"), "j1");
}

TEST_F(JobStoreTest, NumbersEventsWithinEachJob) {
  Open();
  Save(MakeJob(1, "a", v1::JOB_STATE_QUEUED));
  Save(MakeJob(2, "b", v1::JOB_STATE_QUEUED));
  v1::JobEvent event;
  event.set_text("hello");
  for (const auto& [job, id] : {std::pair{"j1", 1}, {"j1", 2}, {"j2", 1}, {"j1", 3}}) {
    ASSERT_TRUE(store_->SaveEvent(job, &event).ok());
    EXPECT_EQ(event.id(), id) << job;
  }
  const auto events = store_->LoadEvents("j1", 1, 1);
  ASSERT_EQ(events->size(), 1u);
  EXPECT_EQ(events->at(0).id(), 2);
  EXPECT_EQ(events->at(0).text(), "hello");
}

TEST_F(JobStoreTest, ForgetsWhatWasNotCommitted) {
  Open();
  Save(MakeJob(1, "a", v1::JOB_STATE_QUEUED));
  ASSERT_TRUE(store_->Begin().ok());
  ASSERT_TRUE(store_->SaveJob(MakeJob(2, "b", v1::JOB_STATE_QUEUED), {}).ok());
  EXPECT_EQ(store_->ListJobs()->size(), 1u) << "visible before the commit";
  store_->Rollback();
  EXPECT_EQ(store_->ListJobs()->size(), 1u);
}

TEST_F(JobStoreTest, ListsNewestFirstAndLivingOldestFirst) {
  Open();
  Save(MakeJob(1, "a", v1::JOB_STATE_QUEUED));
  Save(MakeJob(2, "b", v1::JOB_STATE_DONE));
  Save(MakeJob(3, "c", v1::JOB_STATE_RUNNING));
  EXPECT_EQ(store_->ListJobs()->at(0).id(), "j3");
  const auto living = store_->LoadLiving();
  ASSERT_EQ(living->size(), 2u);
  EXPECT_EQ(living->at(0).job.id(), "j1");
  EXPECT_EQ(living->at(1).job.id(), "j3");
}

TEST_F(JobStoreTest, PagesTensorHashes) {
  Open();
  Save(MakeJob(1, "a", v1::JOB_STATE_RUNNING));
  for (int step = 1; step <= 3; ++step) {
    v1::TensorHashes hashes;
    hashes.set_step(step);
    EXPECT_EQ(*store_->SaveHashes("j1", hashes), step);
  }
  const auto page = store_->LoadHashes("j1", 1, 2, 10);
  ASSERT_EQ(page->size(), 1u);
  EXPECT_EQ(page->at(0).hashes.step(), 3);
}

TEST_F(JobStoreTest, RefusesAFileThatIsNoDatabase) {
  std::ofstream(path_) << std::string(4096, 'x');
  const absl::Status status = JobStore::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
}

TEST_F(JobStoreTest, RefusesADamagedDatabase) {
  Open();
  ASSERT_TRUE(store_->Begin().ok());
  for (int number = 1; number <= 300; ++number) {
    const v1::Job job = MakeJob(number, std::string(200, 'n'), v1::JOB_STATE_DONE);
    ASSERT_TRUE(store_->SaveJob(job, {}).ok());
  }
  ASSERT_TRUE(store_->Commit().ok());
  store_.reset();
  // The pages after the first, overwritten: its header still looks right.
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096);
  for (int page = 0; page < 8; ++page) file << std::string(4096, '\xA5');
  file.close();
  const absl::Status status = JobStore::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST_F(JobStoreTest, RefusesTheDatabaseOfAnotherProgram) {
  auto other = Database::Open(path_, 0);
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_TRUE((*other)->Execute("CREATE TABLE songs (name)").ok());
  other->reset();
  const absl::Status status = JobStore::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another program"));
}

TEST_F(JobStoreTest, RefusesADatabaseOfANewerVersion) {
  Open();
  store_.reset();
  auto database = Database::Open(path_, 0x48524345);
  ASSERT_TRUE(database.ok()) << database.status();
  ASSERT_TRUE((*database)->Execute("PRAGMA user_version=99").ok());
  database->reset();
  const absl::Status status = JobStore::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("newer version"));
}

TEST_F(JobStoreTest, RefusesASecondCoordinatorOnTheSameFolder) {
  auto first = Store::Open(folder_);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status status = Store::Open(folder_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another coordinator uses " + folder_));
  first->reset();
  EXPECT_TRUE(Store::Open(folder_).ok()) << "free again once the first has gone";
}

}  // namespace
}  // namespace headrace
