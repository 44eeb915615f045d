#include "coordinator/metrics.h"

#include <gtest/gtest.h>

#include <limits>

namespace headrace {
namespace {

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() {
    job_.set_id("j1");
    job_.set_state(v1::JOB_STATE_RUNNING);
  }
  // The sum over its series; NaN: there is none of this name.
  double Value(const std::string& name) const {
    double sum = std::numeric_limits<double>::quiet_NaN();
    for (const prometheus::MetricFamily& family : metrics_.Collect()) {
      if (family.name != name) continue;
      sum = 0;
      for (const prometheus::ClientMetric& metric : family.metric) {
        sum += metric.counter.value + metric.gauge.value;
      }
    }
    return sum;
  }
  void Recover(int64_t generation, double failed, double loaded) {
    v1::Recovery* recovery = job_.add_recoveries();
    recovery->set_generation(generation);
    recovery->set_failed_unix_s(failed);
    recovery->set_loaded_unix_s(loaded);
  }

  Metrics metrics_;
  v1::Job job_;
};

TEST_F(MetricsTest, CountsCheckpointsThatBecameDurable) {
  metrics_.SetJob(job_);
  v1::Checkpoint checkpoint;
  checkpoint.set_step(10);
  checkpoint.set_size_bytes(100);
  checkpoint.set_unix_seconds(5000);
  metrics_.AddCheckpoint("j1", checkpoint);
  EXPECT_EQ(Value("headrace_checkpoints_total"), 0) << "taken over from another job";
  checkpoint.set_generation(1);
  metrics_.AddCheckpoint("j1", checkpoint);
  metrics_.AddCheckpoint("j1", checkpoint);
  EXPECT_EQ(Value("headrace_checkpoints_total"), 2);
  EXPECT_EQ(Value("headrace_checkpoint_bytes_total"), 200);
  EXPECT_EQ(Value("headrace_last_checkpoint_timestamp_seconds"), 5000);
  checkpoint.set_damaged("torn");
  metrics_.AddCheckpoint("j1", checkpoint);
  EXPECT_EQ(Value("headrace_checkpoints_total"), 2);
  job_.set_state(v1::JOB_STATE_DONE);
  metrics_.SetJob(job_);
  EXPECT_FALSE(Value("headrace_last_checkpoint_timestamp_seconds") == 5000) << "the job has ended";
}

TEST_F(MetricsTest, CountsEachRecoveryOnceAndThoseOfItsOwnTimeOnly) {
  Recover(2, 100, 103);
  metrics_.SetJob(job_);
  EXPECT_EQ(Value("headrace_recoveries_total"), 0) << "before this coordinator started";
  Recover(3, 200, 0);
  metrics_.SetJob(job_);
  EXPECT_EQ(Value("headrace_recoveries_total"), 0) << "it is under way";
  job_.mutable_recoveries(1)->set_loaded_unix_s(204);
  metrics_.SetJob(job_);
  metrics_.SetJob(job_);
  EXPECT_EQ(Value("headrace_recoveries_total"), 1);
  EXPECT_EQ(Value("headrace_recovery_seconds_total"), 4);
}

TEST_F(MetricsTest, AddsUpWhatSnapshotsTake) {
  v1::StageSnapshot snapshot;
  snapshot.set_copy_s(0.25);
  metrics_.AddSnapshot(snapshot);
  snapshot.set_holder("w1");
  snapshot.set_write_s(2);
  metrics_.AddSnapshot(snapshot);
  EXPECT_EQ(Value("headrace_snapshot_copy_seconds_total"), 0.25);
  EXPECT_EQ(Value("headrace_snapshot_write_seconds_total"), 2);
  snapshot.set_write_s(std::numeric_limits<double>::quiet_NaN());
  metrics_.AddSnapshot(snapshot);
  snapshot.set_write_s(-1);
  metrics_.AddSnapshot(snapshot);
  EXPECT_EQ(Value("headrace_snapshot_write_seconds_total"), 2);
  snapshot.set_failed("the disk is full");
  metrics_.AddSnapshot(snapshot);
  EXPECT_EQ(Value("headrace_snapshot_failures_total"), 1);
}

}  // namespace
}  // namespace headrace
