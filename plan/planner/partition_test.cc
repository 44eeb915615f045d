#include "plan/planner/partition.h"

#include <gtest/gtest.h>

#include <ctime>
#include <limits>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "plan/planner/partition_testing.h"

namespace headrace {
namespace {

// Random problems against every possible partition.
TEST(PartitionTest, EqualsBruteForceOnSmallProblems) {
  int solved = 0, impossible = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    const RandomProblem random(seed);
    const PartitionProblem& p = random.problem;
    if (!random.enough_workers()) continue;
    const std::string what = absl::StrCat("seed ", seed);
    const double best = BruteForce(p);
    const auto partition = FindPartition(p);
    ASSERT_EQ(partition.has_value(), best < std::numeric_limits<double>::infinity()) << what;
    if (!partition) {
      ++impossible;
      continue;
    }
    ++solved;
    ExpectSound(p, *partition, what);
    EXPECT_NEAR(partition->slowest_s, best, 1e-9 * best) << what;
  }
  EXPECT_GT(solved, 500);
  EXPECT_GT(impossible, 100);
}

// With the shortage added to every limit something fits; with one byte less nothing does.
TEST(PartitionTest, ShortageIsExact) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    Table table;
    PartitionProblem p;
    p.num_layers = 6;
    p.num_stages = table.num_stages = 3;
    for (int i = 0; i < p.num_layers; ++i) {
      table.seconds.push_back(1);
      table.bytes.push_back(draw(1, 1000));
    }
    p.class_sizes = {2, 2};
    p.limit_bytes = {draw(0, 400), draw(0, 400)};
    table.slowness = {1, 2};
    p.costs = &table;
    const auto shortage = FindShortage(p);
    ASSERT_TRUE(shortage.has_value());
    const auto feasible = [&](int64_t extra) {
      PartitionProblem relaxed = p;
      for (int64_t& limit : relaxed.limit_bytes) limit += extra;
      return BruteForce(relaxed) < std::numeric_limits<double>::infinity();
    };
    EXPECT_TRUE(feasible(shortage->bytes)) << "seed " << seed;
    EXPECT_FALSE(shortage->bytes > 0 && feasible(shortage->bytes - 1)) << "seed " << seed;
  }
}

TEST(PartitionTest, MoreStagesThanLayersIsNoPartition) {
  Table table;
  table.seconds = {1, 1};
  table.bytes = {1, 1};
  table.slowness = {1};
  PartitionProblem p = {2, 3, {3}, {100}, &table};
  EXPECT_FALSE(FindPartition(p).has_value());
  EXPECT_FALSE(FindShortage(p).has_value());
}

// One layer dominates: the others are still shared out evenly, not heaped on the first stage.
TEST(PartitionTest, SharesEvenlyWhereTheSlowestStageLeavesRoom) {
  Table table;
  table.seconds = {1, 1, 1, 1, 8};
  table.bytes = {1, 1, 1, 1, 1};
  table.slowness = {1};
  table.num_stages = 3;
  const PartitionProblem p = {5, 3, {3}, {100}, &table};
  const auto partition = FindPartition(p);
  ASSERT_TRUE(partition.has_value());
  EXPECT_EQ(partition->cells, (std::vector<Cell>{{0, 2, 0}, {2, 4, 0}, {4, 5, 0}}));
}

TEST(PartitionTest, PrefersFasterWorkers) {
  Table table;
  table.seconds = {1, 1, 1, 1};
  table.bytes = {1, 1, 1, 1};
  table.slowness = {2, 1, 3};
  table.num_stages = 2;
  const PartitionProblem p = {4, 2, {2, 2, 2}, {100, 100, 100}, &table};
  const auto partition = FindPartition(p);
  ASSERT_TRUE(partition.has_value());
  EXPECT_EQ(partition->cells, (std::vector<Cell>{{0, 2, 1}, {2, 4, 1}}));
}

// Prefix sums, as the planner's own table has.
struct LongTable : CellCosts {
  std::vector<double> sum = {0};
  double Seconds(int, int, int first, int end) const override { return sum[end] - sum[first]; }
  int64_t Bytes(int, int, int first, int end) const override { return end - first; }
};

TEST(PartitionTest, TenThousandLayersOnAThousandEqualWorkersTakeLessThanASecond) {
  LongTable table;
  std::mt19937 random(1);
  for (int i = 0; i < 10'000; ++i) table.sum.push_back(table.sum.back() + 1 + random() % 5);
  const PartitionProblem p = {10'000, 1'000, {1'000}, {11}, &table};
  const std::clock_t start = std::clock();  // of this process: others may load the machine
  const auto partition = FindPartition(p);
  const double took_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(partition.has_value());
  ExpectSound(p, *partition, "long");
  EXPECT_LT(took_s, 20);  // some 0.1 s; the wrong algorithm takes minutes
}

TEST(PartitionTest, IsExactWhereThatTakesFewSteps) {
  EXPECT_EQ(PartitionSteps({1000}, 10), 11);
  EXPECT_EQ(PartitionSteps({1, 1, 1}, 3), 24);
  EXPECT_EQ(PartitionSteps(std::vector<int>(100, 1), 100), std::numeric_limits<int64_t>::max());
  PartitionProblem p;
  p.num_stages = 1000;
  for (const std::vector<int>& exact : {std::vector<int>{1000}, {63, 63}, std::vector<int>(9, 1)}) {
    p.class_sizes = exact;
    EXPECT_TRUE(IsExact(p)) << exact.size();
  }
  for (const std::vector<int>& many : {std::vector<int>{64, 64}, std::vector<int>(10, 1)}) {
    p.class_sizes = many;
    EXPECT_FALSE(IsExact(p)) << many.size();
  }
}

}  // namespace
}  // namespace headrace
