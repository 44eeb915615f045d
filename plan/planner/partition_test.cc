#include "plan/planner/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

// Layers with a cost and a size each, classes with a speed; earlier stages keep more (as 1F1B
// does), and each stage but the ends has a link.
struct Table : CellCosts {
  std::vector<double> seconds;
  std::vector<int64_t> bytes;
  std::vector<double> slowness;  // of each class
  int num_stages = 1;
  int64_t kept_per_stage = 0;
  double link_s = 0;

  double Seconds(int stage, int c, int first, int end) const override {
    const double sum =
        std::accumulate(seconds.begin() + first, seconds.begin() + end, 0.0) * slowness[c];
    return sum + link_s * ((stage > 0) + (stage < num_stages - 1));
  }
  int64_t Bytes(int stage, int c, int first, int end) const override {
    return std::accumulate(bytes.begin() + first, bytes.begin() + end, int64_t{0}) +
           kept_per_stage * (num_stages - stage);
  }
};

// Tries every cut and every order of classes.
double BruteForce(const PartitionProblem& p) {
  std::vector<int> left = p.class_sizes;
  std::function<double(int, int)> rest = [&](int stage, int first) {
    if (stage == p.num_stages) {
      return first == p.num_layers ? 0 : std::numeric_limits<double>::infinity();
    }
    double best = std::numeric_limits<double>::infinity();
    for (int end = first + 1; end <= p.num_layers; ++end) {
      for (size_t c = 0; c < left.size(); ++c) {
        const int cls = static_cast<int>(c);
        if (left[c] == 0 || p.costs->Bytes(stage, cls, first, end) > p.limit_bytes[c]) continue;
        --left[c];
        best = std::min(best,
                        std::max(p.costs->Seconds(stage, cls, first, end), rest(stage + 1, end)));
        ++left[c];
      }
    }
    return best;
  };
  return rest(0, 0);
}

void ExpectSound(const PartitionProblem& p, const Partition& partition, const std::string& what) {
  ASSERT_EQ(static_cast<int>(partition.cells.size()), p.num_stages) << what;
  std::vector<int> used(p.class_sizes.size());
  int next = 0;
  double slowest_s = 0;
  for (int k = 0; k < p.num_stages; ++k) {
    const Cell& cell = partition.cells[k];
    EXPECT_EQ(cell.first, next) << what;  // ordered, disjoint, no layer dropped
    EXPECT_LT(cell.first, cell.end) << what;
    next = cell.end;
    ++used[cell.worker_class];
    EXPECT_LE(p.costs->Bytes(k, cell.worker_class, cell.first, cell.end),
              p.limit_bytes[cell.worker_class])
        << what;
    slowest_s = std::max(slowest_s, p.costs->Seconds(k, cell.worker_class, cell.first, cell.end));
  }
  EXPECT_EQ(next, p.num_layers) << what;
  EXPECT_DOUBLE_EQ(partition.slowest_s, slowest_s) << what;
  for (size_t c = 0; c < used.size(); ++c) EXPECT_LE(used[c], p.class_sizes[c]) << what;
}

// Random problems against every possible partition: workers unequal in speed and memory, memory
// often too small, links, stages that keep more the earlier they are.
TEST(PartitionTest, EqualsBruteForceOnSmallProblems) {
  int solved = 0, impossible = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    Table table;
    PartitionProblem p;
    p.num_layers = draw(1, 7);
    p.num_stages = table.num_stages = draw(1, std::min(p.num_layers, 4));
    for (int i = 0; i < p.num_layers; ++i) {
      table.seconds.push_back(draw(0, 9) + (draw(0, 3) == 0 ? 0.5 : 0));
      table.bytes.push_back(draw(1, 9));
    }
    const int classes = draw(1, 3);
    for (int c = 0; c < classes; ++c) {
      p.class_sizes.push_back(draw(1, 3));
      p.limit_bytes.push_back(draw(5, 30));
      table.slowness.push_back(draw(1, 4) * 0.5);
    }
    if (std::accumulate(p.class_sizes.begin(), p.class_sizes.end(), 0) < p.num_stages) continue;
    table.kept_per_stage = draw(0, 2);
    table.link_s = draw(0, 2) * 0.25;
    p.costs = &table;

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
  EXPECT_LT(took_s, 1.0);
}

TEST(PartitionTest, CountsItsStates) {
  EXPECT_EQ(PartitionStates({1000}, 10), 11);
  EXPECT_EQ(PartitionStates({1, 1, 1}, 3), 8);
  EXPECT_EQ(PartitionStates(std::vector<int>(100, 1), 100), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace headrace
