#include "plan/recovery_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace headrace {
namespace {

using ::testing::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(StoreFolderTest, IsAnAbsoluteFolderOrTheCoordinators) {
  const struct {
    const char *store, *folder;
  } kCases[] = {
      {"", ""},
      {"file:///mnt/checkpoints", "/mnt/checkpoints"},
      {"file:///mnt/a b%20c/", "/mnt/a b%20c"},
      {"file:///mnt/..x/.hidden", "/mnt/..x/.hidden"},
  };
  for (const auto& c : kCases) {
    const auto folder = StoreFolder(c.store);
    ASSERT_TRUE(folder.ok()) << c.store << ": " << folder.status();
    EXPECT_EQ(*folder, c.folder);
  }
}

TEST(StoreFolderTest, RefusesWhatItCannotWriteToAndSaysWhatWorks) {
  const std::string kNoBucket = ": buckets cannot be written to; expected file:///FOLDER";
  const std::pair<std::string, std::string> kCases[] = {
      {"s3://bucket/x", "\"s3://bucket/x\"" + kNoBucket},
      {"gs://bucket", "\"gs://bucket\"" + kNoBucket},
      {"https://host/x", "\"https://host/x\"; expected file:///FOLDER"},
      {"/mnt/x", "\"/mnt/x\"; expected file:///mnt/x for this folder"},
      {"file://mnt/x", "\"file://mnt/x\"; expected an absolute path after file://, so three"},
      {"file:/mnt/x", "\"file:/mnt/x\"; expected file:///FOLDER"},
      {"file://", "\"file://\"; expected an absolute path"},
      {"file:///", "\"file:///\"; expected a folder, not the root of all"},
      {"file:////", "\"file:////\"; expected a folder, not the root of all"},
      {"file:///mnt/../etc", "\"file:///mnt/../etc\"; expected a path without \".\""},
      {"file:///mnt/./x", "\"file:///mnt/./x\"; expected a path without \".\""},
      {"file:///mnt/a\nb", "\"file:///mnt/a?b\"; expected a path without"},
      {"file:///" + std::string(2000, 'x'), "a path of 2001 bytes; expected at most 1024"},
  };
  for (const auto& [store, message] : kCases) {
    const absl::Status status = StoreFolder(store).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << store;
    EXPECT_THAT(std::string(status.message()), StartsWith("checkpoint.store: " + message));
  }
}

struct Row {
  const char* message;  // begins with; "": accepted
  std::function<void(v1::CheckpointSpec*, v1::RecoverySpec*)> change;
};

void ExpectVerdicts(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    v1::CheckpointSpec checkpoint;
    v1::RecoverySpec recovery;
    row.change(&checkpoint, &recovery);
    absl::Status status = CheckCheckpoint(checkpoint);
    if (status.ok()) status = CheckRecovery(recovery, checkpoint);
    EXPECT_EQ(status.ok(), row.message[0] == '\0') << row.message << ": " << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(row.message));
  }
}

TEST(CheckpointCheckTest, TakesSaneValuesOnly) {
  ExpectVerdicts({
      {"", [](auto*, auto*) {}},
      {"",
       [](auto* c, auto*) {
         c->set_every_steps(1000);
         c->set_every_minutes(0);
         c->set_keep_last(1);
         c->set_keep_every(5000);
         c->set_replicate(v1::REPLICATION_NEIGHBOUR);
         c->set_replicate_every(1);
       }},
      {"checkpoint.every_steps: -1; expected a whole number from 0",
       [](auto* c, auto*) { c->set_every_steps(-1); }},
      {"checkpoint.every_steps: 2000000000; expected",
       [](auto* c, auto*) { c->set_every_steps(2'000'000'000); }},
      {"checkpoint.every_minutes: -0.5; expected a finite number, 0 or more",
       [](auto* c, auto*) { c->set_every_minutes(-0.5); }},
      {"checkpoint.every_minutes: nan; expected",
       [](auto* c, auto*) { c->set_every_minutes(kNan); }},
      {"checkpoint.every_minutes: 1e+09; expected at most",
       [](auto* c, auto*) { c->set_every_minutes(1e9); }},
      {"checkpoint.keep_last: 0; expected a whole number from 1",
       [](auto* c, auto*) { c->set_keep_last(0); }},
      {"checkpoint.keep_every: -2; expected", [](auto* c, auto*) { c->set_keep_every(-2); }},
      {"checkpoint.store: \"s3://b\"", [](auto* c, auto*) { c->set_store("s3://b"); }},
      {"checkpoint.replicate: unknown value 9; expected auto, neighbour or off",
       [](auto* c, auto*) { c->set_replicate(static_cast<v1::Replication>(9)); }},
      {"checkpoint.replicate_every: -1; expected",
       [](auto* c, auto*) { c->set_replicate_every(-1); }},
      {"checkpoint.replicate_every: 5; expected it only with replicate",
       [](auto* c, auto*) {
         c->set_replicate(v1::REPLICATION_OFF);
         c->set_replicate_every(5);
       }},
  });
}

TEST(RecoveryCheckTest, TakesSaneValuesOnly) {
  ExpectVerdicts({
      {"",
       [](auto*, auto* r) {
         r->set_restart(v1::SWITCH_OFF);
         r->set_elastic(v1::SWITCH_AUTO);
         r->set_on_nan(v1::NAN_POLICY_ROLLBACK);
         r->set_spike_factor(3);
         r->set_coordinator_timeout_s(0);
       }},
      {"recovery.restart: unknown value 7; expected auto or off",
       [](auto*, auto* r) { r->set_restart(static_cast<v1::Switch>(7)); }},
      {"recovery.elastic: unknown value 7; expected auto or off",
       [](auto*, auto* r) { r->set_elastic(static_cast<v1::Switch>(7)); }},
      {"recovery.on_nan: unknown value 7; expected stop, rollback or skip",
       [](auto*, auto* r) { r->set_on_nan(static_cast<v1::NanPolicy>(7)); }},
      {"recovery.on_nan: rollback; expected it only with checkpoints",
       [](auto* c, auto* r) {
         c->set_every_minutes(0);
         r->set_on_nan(v1::NAN_POLICY_ROLLBACK);
       }},
      {"recovery.spike_factor: -3; expected a finite number, 0 or more",
       [](auto*, auto* r) { r->set_spike_factor(-3); }},
      {"recovery.spike_factor: 0.5; expected 0 (no loss counts as a spike) or a number above 1",
       [](auto*, auto* r) { r->set_spike_factor(0.5); }},
      {"recovery.coordinator_timeout_s: -1; expected",
       [](auto*, auto* r) { r->set_coordinator_timeout_s(-1); }},
      {"recovery.coordinator_timeout_s: 1e+06; expected at most 604800 (a week)",
       [](auto*, auto* r) { r->set_coordinator_timeout_s(1e6); }},
  });
}

}  // namespace
}  // namespace headrace
