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
