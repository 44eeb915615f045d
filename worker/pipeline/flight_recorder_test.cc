#include "worker/pipeline/flight_recorder.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;

TEST(FlightRecorder, GivesEntriesOldestFirstWithTheirTimes) {
  FakeClock clock(absl::FromUnixSeconds(3600 * 4 + 60 * 53 + 56));
  FlightRecorder recorder(&clock);
  recorder.Record("step 1, micro-batch 0: forward");
  clock.Advance(absl::Microseconds(123456));
  recorder.Record("step 1, micro-batch 1: forward");
  EXPECT_THAT(recorder.Entries(), ElementsAre("04:53:56.000000 step 1, micro-batch 0: forward",
                                              "04:53:56.123456 step 1, micro-batch 1: forward"));
}

TEST(FlightRecorder, KeepsTheLast256Entries) {
  FakeClock clock(absl::UnixEpoch());
  FlightRecorder recorder(&clock);
  for (int i = 0; i < 300; ++i) recorder.Record(absl::StrCat(i));
  const std::vector<std::string> entries = recorder.Entries();
  ASSERT_EQ(entries.size(), FlightRecorder::kCapacity);
  EXPECT_EQ(entries.front(), "00:00:00.000000 44");
  EXPECT_EQ(entries.back(), "00:00:00.000000 299");
}

}  // namespace
}  // namespace headrace
