#include "plan/planner/worker_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/planner/partition_testing.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A model as there are: a light and large embedding, equal blocks, a heavy and large head. Sums
// make any range's cost constant time.
struct Decoder : CellCosts {
  std::vector<double> slowness;  // of each class
  int num_layers, num_stages;
  double head_s = 3;
  int64_t block_bytes = 10, end_bytes = 30, stash_bytes = 2;

  Decoder(int layers, int stages) : num_layers(layers), num_stages(stages) {}

  double Seconds(int, int c, int first, int end) const override {
    const int blocks = std::min(end, num_layers - 1) - std::max(first, 1);
    return slowness[c] * (blocks + (end == num_layers ? head_s : 0));
  }
  int64_t Bytes(int stage, int, int first, int end) const override {
    const int blocks = std::min(end, num_layers - 1) - std::max(first, 1);
    return blocks * block_bytes + (first == 0 ? end_bytes : 0) +
           (end == num_layers ? end_bytes : 0) + stash_bytes * (num_stages - stage);
  }
};

PartitionProblem ProblemOf(const Decoder& costs, std::vector<int64_t> limits) {
  const std::vector<int> sizes(limits.size(), 1);
  return {costs.num_layers, costs.num_stages, sizes, std::move(limits), &costs};
}

TEST(WorkerOrderTest, ThoseWithMemoryToSpareComeFirst) {
  Decoder costs(42, 4);
  costs.slowness = {1, 1, 1, 1};
  costs.stash_bytes = 20;
  const auto order = OrderWorkers(ProblemOf(costs, {180, 240, 200, 220}), {12, 0});
  ASSERT_TRUE(order.has_value());
  EXPECT_THAT(*order, ElementsAre(1, 3, 2, 0));
}

TEST(WorkerOrderTest, TheFastestServe) {
  Decoder costs(42, 3);
  costs.slowness = {1, 4, 1, 9, 2};
  const auto order = OrderWorkers(ProblemOf(costs, std::vector<int64_t>(5, 1000)), {20, 0});
  ASSERT_TRUE(order.has_value());
  std::vector<int> serving = *order;
  std::sort(serving.begin(), serving.end());
  EXPECT_THAT(serving, ElementsAre(0, 2, 4));
}

// Only one worker can hold the head, another one the embedding; both are slow.
TEST(WorkerOrderTest, TheEndsGoToWhoCanHoldThem) {
  Decoder costs(22, 4);
  costs.slowness = {1, 1, 1, 1, 6, 5};
  costs.end_bytes = 500;
  PartitionProblem p = ProblemOf(costs, {200, 200, 200, 200, 700, 600});
  const auto order = OrderWorkers(p, {});
  ASSERT_TRUE(order.has_value());
  EXPECT_EQ(order->front() + order->back(), 9);
  p.limit_bytes[5] = 200;
  EXPECT_FALSE(OrderWorkers(p, {}).has_value());
}

// The search over orders against trying them all, on models as there are.
TEST(WorkerOrderTest, FindsTheBestPartitionOfAModelWithEqualBlocks) {
  int solved = 0, worse = 0;
  double worst = 1;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const int stages = draw(1, 6), layers = draw(12, 50);
    Decoder costs(layers, stages);
    costs.head_s = draw(0, 6);
    costs.stash_bytes = draw(0, 6);
    costs.end_bytes = draw(0, 60);
    std::vector<int64_t> limits;
    for (int i = costs.num_stages + draw(0, 3); i > 0; --i) {
      costs.slowness.push_back(draw(2, 20) / 4.0);
      limits.push_back(draw(60, 400));
    }
    PartitionProblem p = ProblemOf(costs, limits);
    const auto exact = FindPartition(p);
    ASSERT_TRUE(IsExact(p));
    p.max_steps = 0;
    const auto found = FindPartition(p);
    const std::string what = absl::StrCat("seed ", seed);
    if (!exact) {
      EXPECT_FALSE(found.has_value()) << what;
      continue;
    }
    ASSERT_TRUE(found.has_value()) << what;
    ExpectSound(p, *found, what);
    ++solved;
    EXPECT_GE(found->slowest_s, exact->slowest_s * (1 - 1e-9)) << what;
    worst = std::max(worst, found->slowest_s / exact->slowest_s);
    if (found->slowest_s > exact->slowest_s * (1 + 1e-9)) ++worse;
  }
  EXPECT_GT(solved, 200);
  EXPECT_LE(worse, solved / 100);  // where few layers make few choices
  EXPECT_LT(worst, 1.15);
}

// Layers of all sizes, where the rule has no claim: sound, and not far off.
TEST(WorkerOrderTest, IsSoundOnAnyProblem) {
  int solved = 0, missed = 0;
  double sum = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    RandomProblem random(seed);
    PartitionProblem& p = random.problem;
    if (!random.enough_workers()) continue;
    p.max_steps = 0;
    const double best = BruteForce(p);
    const auto found = FindPartition(p);
    const std::string what = absl::StrCat("seed ", seed);
    if (!found) {
      missed += best < kInfinity ? 1 : 0;
      continue;
    }
    ++solved;
    ExpectSound(p, *found, what);
    ASSERT_GE(found->slowest_s, best * (1 - 1e-9)) << what;
    sum += best > 0 ? found->slowest_s / best : 1;
  }
  EXPECT_GT(solved, 500);
  EXPECT_LT(missed, solved / 100);
  EXPECT_LT(sum / solved, 1.02);
}

// Nobody can do better than share blocks by speed as finely as they like.
TEST(WorkerOrderTest, AThousandUnlikeWorkersTakeLessThanASecondAndAreUsedWell) {
  Decoder costs(10'000, 1'000);
  std::vector<int64_t> limits;
  double blocks_per_second = 0;
  for (int i = 0; i < 1'000; ++i) {
    costs.slowness.push_back(1 / (1 + i * 0.003));
    blocks_per_second += 1 + i * 0.003;
    limits.push_back(4'000 + i);
  }
  const PartitionProblem p = ProblemOf(costs, limits);
  ASSERT_FALSE(IsExact(p));
  const std::clock_t start = std::clock();  // of this process: others may load the machine
  const auto partition = FindPartition(p);
  const double took_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(partition.has_value());
  ExpectSound(p, *partition, "long");
  EXPECT_LT(took_s, 20);  // some 0.1 s; the wrong algorithm takes minutes
  // Whole blocks, some ten a worker.
  EXPECT_LT(partition->slowest_s, 1.1 * (9'998 + costs.head_s) / blocks_per_second);
}

}  // namespace
}  // namespace headrace
