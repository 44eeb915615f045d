#include "plan/planner/partition_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/planner/partition_testing.h"

namespace headrace {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One worker a stage, drawn from all there are.
std::vector<int> DrawOrder(const PartitionProblem& p, unsigned seed) {
  std::vector<int> all;
  for (size_t c = 0; c < p.class_sizes.size(); ++c) {
    all.insert(all.end(), p.class_sizes[c], static_cast<int>(c));
  }
  std::shuffle(all.begin(), all.end(), std::mt19937(seed));
  all.resize(p.num_stages);
  return all;
}

// At the least bound there is a partition, just below there is none.
TEST(PartitionSolverTest, IsExactForAGivenOrder) {
  int solved = 0, impossible = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    const RandomProblem random(seed);
    const PartitionProblem& p = random.problem;
    if (!random.enough_workers()) continue;
    const std::vector<int> order = DrawOrder(p, seed);
    const std::string what = absl::StrCat("seed ", seed);
    PartitionSolver solver(p, order);
    const double best = BruteForce(p, order);
    if (best == kInfinity) {
      EXPECT_FALSE(solver.Solve({}).has_value()) << what;
      ++impossible;
      continue;
    }
    ++solved;
    const auto partition = solver.Solve({best * (1 + 1e-9), 0});
    ASSERT_TRUE(partition.has_value()) << what;
    ExpectSound(p, *partition, what);
    for (int k = 0; k < p.num_stages; ++k) {
      EXPECT_EQ(partition->cells[k].worker_class, order[k]) << what;
    }
    EXPECT_FALSE(best > 0 && solver.Solve({best * (1 - 1e-9), 0})) << what;
  }
  EXPECT_GT(solved, 500);
  EXPECT_GT(impossible, 100);
}

// What a search may skip: it never jumps over the least bound, and it gets there.
TEST(PartitionSolverTest, NextSecondsLeadsToTheLeastBoundAndNotBeyond) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const RandomProblem random(seed);
    const PartitionProblem& p = random.problem;
    const double best = random.enough_workers() ? BruteForce(p) : kInfinity;
    if (best == kInfinity) continue;
    PartitionSolver solver(p);
    double bound = 0;
    int steps = 0;
    while (!solver.Solve({bound, 0})) {
      ASSERT_GT(solver.next_seconds(), bound) << "seed " << seed;
      ASSERT_LE(solver.next_seconds(), best * (1 + 1e-12)) << "seed " << seed;
      bound = solver.next_seconds();
      ASSERT_LT(++steps, 1000) << "seed " << seed;
    }
    EXPECT_NEAR(bound, best, 1e-9 * best) << "seed " << seed;
  }
}

TEST(PartitionSolverTest, ExtraBytesRaiseEveryLimit) {
  Table table;
  table.seconds = {1, 1, 1, 1};
  table.bytes = {10, 10, 10, 10};
  table.slowness = {1, 1};
  table.num_stages = 2;
  const PartitionProblem p = {4, 2, {1, 1}, {12, 5}, &table};
  PartitionSolver solver(p);
  EXPECT_FALSE(solver.Solve({kInfinity, 14}).has_value());  // 26 and 19: 2 and 1 layers
  EXPECT_EQ(solver.next_seconds(), kInfinity);
  EXPECT_TRUE(solver.Solve({kInfinity, 15}).has_value());
}

}  // namespace
}  // namespace headrace
