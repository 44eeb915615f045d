#include "plan/planner/worker_classes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/planner/partition.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;

TEST(WorkerClassesTest, MeasurementsAsNearAsNoiseMakeOneClass) {
  const auto classes =
      GroupWorkers({{"a", 50e9, 100, 1}, {"b", 30e9, 100, 1}, {"c", 49e9, 100, 1}}, 3, 1000);
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_THAT(classes[0].workers, ElementsAre(0, 2));
  EXPECT_EQ(classes[0].flops_per_second, 49e9);
  EXPECT_THAT(classes[1].workers, ElementsAre(1));
}

TEST(WorkerClassesTest, MemoryAndThreadsTellWorkersApart) {
  EXPECT_EQ(GroupWorkers({{"a", 50e9, 100, 1}, {"b", 50e9, 99, 1}}, 2, 1000).size(), 2u);
  EXPECT_EQ(GroupWorkers({{"a", 50e9, 100, 1}, {"b", 50e9, 100, 2}}, 2, 1000).size(), 2u);
}

TEST(WorkerClassesTest, AnUnmeasuredWorkerHasADefaultPerThread) {
  EXPECT_EQ(GroupWorkers({{"a", 0, 100, 4}}, 1, 1000)[0].flops_per_second,
            4 * kDefaultFlopsPerThread);
}

PlanWorker Measured(double flops_per_second, double block_s) {
  PlanWorker worker{"w", flops_per_second, 100, 1};
  worker.measured = {{LayerKind::kGpt2Block, block_s, 0, 2 * block_s},
                     {LayerKind::kHead, 0.5, 0, 0.5}};
  return worker;
}

TEST(WorkerClassesTest, MeasuredLayersCountForMoreThanSpeed) {
  const auto alike = GroupWorkers({Measured(50e9, 1), Measured(30e9, 1.02)}, 2, 1000);
  ASSERT_EQ(alike.size(), 1u);
  ASSERT_EQ(alike[0].measured.size(), 2u);
  EXPECT_EQ(alike[0].measured[0].forward_s, 1.02);  // the slowest
  EXPECT_EQ(GroupWorkers({Measured(50e9, 1), Measured(50e9, 1.2)}, 2, 1000).size(), 2u);
  EXPECT_EQ(GroupWorkers({Measured(50e9, 1), {"b", 50e9, 100, 1}}, 2, 1000).size(), 2u);
}

TEST(WorkerClassesTest, AClassHasOnlyWhatWasMeasuredForAllOfIt) {
  PlanWorker lacks_head = Measured(50e9, 1);
  lacks_head.measured.pop_back();
  // One state: everything must become one class.
  const auto one = GroupWorkers({Measured(50e9, 2), lacks_head}, 2, 1);
  ASSERT_EQ(one.size(), 1u);
  ASSERT_EQ(one[0].measured.size(), 1u);
  EXPECT_EQ(one[0].measured[0], (MeasuredCost{LayerKind::kGpt2Block, 2, 0, 4}));
  const auto none = GroupWorkers({Measured(50e9, 2), {"b", 40e9, 100, 1}}, 2, 1);
  ASSERT_EQ(none.size(), 1u);
  EXPECT_TRUE(none[0].measured.empty());
  EXPECT_EQ(none[0].flops_per_second, 40e9);
}

// Forty different workers would make 2^40 states: coarser classes, none stronger than its members.
TEST(WorkerClassesTest, ManyDifferentWorkersMakeCoarserClasses) {
  std::vector<PlanWorker> workers;
  for (int i = 0; i < 40; ++i) workers.push_back({"w", 10e9 * (1 + i), 1000 + 100 * i, 1 + i % 3});
  const auto classes = GroupWorkers(workers, 40, 4096);
  std::vector<int> sizes;
  size_t members = 0;
  for (const WorkerClass& c : classes) {
    sizes.push_back(static_cast<int>(c.workers.size()));
    members += c.workers.size();
    for (int i : c.workers) {
      EXPECT_LE(c.flops_per_second, workers[i].flops_per_second);
      EXPECT_LE(c.memory_limit_bytes, workers[i].memory_limit_bytes);
      EXPECT_GE(c.threads, workers[i].threads);
    }
  }
  EXPECT_EQ(members, 40u);
  EXPECT_LE(PartitionStates(sizes, 40), 4096);
}

}  // namespace
}  // namespace headrace
