#include "plan/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BatchTest, LargerMicroBatchesComeFirst) {
  EXPECT_THAT(*SplitBatch(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(*SplitBatch(7, 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(*SplitBatch(5, 5), ElementsAre(1, 1, 1, 1, 1));
  EXPECT_THAT(*SplitBatch(5, 1), ElementsAre(5));
}

TEST(BatchTest, EverySplitKeepsAllSequencesAndDiffersByAtMostOne) {
  for (int64_t batch = 1; batch <= 40; ++batch) {
    for (int64_t parts = 1; parts <= batch; ++parts) {
      const auto sizes = SplitBatch(batch, parts);
      ASSERT_TRUE(sizes.ok());
      EXPECT_EQ(static_cast<int64_t>(sizes->size()), parts);
      EXPECT_EQ(std::accumulate(sizes->begin(), sizes->end(), int64_t{0}), batch);
      EXPECT_LE(sizes->front() - sizes->back(), 1) << batch << " / " << parts;
      EXPECT_TRUE(std::is_sorted(sizes->rbegin(), sizes->rend()));
    }
  }
}

TEST(BatchTest, RefusesMoreMicroBatchesThanSequencesNamingBoth) {
  for (int64_t parts : {-1, 0, 9}) {
    const auto sizes = SplitBatch(8, parts);
    ASSERT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument) << parts;
    EXPECT_THAT(sizes.status().message(), HasSubstr(absl::StrCat("micro_batches is ", parts)));
    EXPECT_THAT(sizes.status().message(), HasSubstr("batch_size, which is 8"));
  }
}

}  // namespace
}  // namespace headrace
