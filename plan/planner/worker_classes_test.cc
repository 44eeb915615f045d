#include "plan/planner/worker_classes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using ::testing::ElementsAre;

TEST(WorkerClassesTest, MeasurementsAsNearAsNoiseMakeOneClass) {
  const auto classes =
      GroupWorkers({{"a", 50e9, 100, 1}, {"b", 30e9, 100, 1}, {"c", 49e9, 100, 1}});
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_THAT(classes[0].workers, ElementsAre(0, 2));
  EXPECT_EQ(classes[0].flops_per_second, 49e9);
  EXPECT_THAT(classes[1].workers, ElementsAre(1));
}

TEST(WorkerClassesTest, MemoryAndThreadsTellWorkersApart) {
  EXPECT_EQ(GroupWorkers({{"a", 50e9, 100, 1}, {"b", 50e9, 99, 1}}).size(), 2u);
  EXPECT_EQ(GroupWorkers({{"a", 50e9, 100, 1}, {"b", 50e9, 100, 2}}).size(), 2u);
}

TEST(WorkerClassesTest, AnUnmeasuredWorkerHasADefaultPerThread) {
  EXPECT_EQ(GroupWorkers({{"a", 0, 100, 4}})[0].flops_per_second, 4 * kDefaultFlopsPerThread);
}

PlanWorker Measured(double flops_per_second, double block_s) {
  PlanWorker worker{"w", flops_per_second, 100, 1};
  worker.measured = {{LayerKind::kGpt2Block, block_s, 0, 2 * block_s},
                     {LayerKind::kHead, 0.5, 0, 0.5}};
  return worker;
}

TEST(WorkerClassesTest, MeasuredLayersCountForMoreThanSpeed) {
  const auto alike = GroupWorkers({Measured(50e9, 1), Measured(30e9, 1.02)});
  ASSERT_EQ(alike.size(), 1u);
  ASSERT_EQ(alike[0].measured.size(), 2u);
  EXPECT_EQ(alike[0].measured[0].forward_s, 1.02);  // the slowest
  EXPECT_EQ(GroupWorkers({Measured(50e9, 1), Measured(50e9, 1.2)}).size(), 2u);
  EXPECT_EQ(GroupWorkers({Measured(50e9, 1), {"b", 50e9, 100, 1}}).size(), 2u);
}

// Those of which other layers were measured are other workers, however fast.
TEST(WorkerClassesTest, AClassHasTheSameLayersMeasured) {
  PlanWorker lacks_head = Measured(50e9, 1);
  lacks_head.measured.pop_back();
  EXPECT_EQ(GroupWorkers({Measured(50e9, 1), lacks_head}).size(), 2u);
}

TEST(WorkerClassesTest, AThousandUnlikeWorkersAreAThousandClasses) {
  std::vector<PlanWorker> workers;
  for (int i = 0; i < 1000; ++i) workers.push_back({"w", 50e9, 1000 + i, 1});
  const auto classes = GroupWorkers(workers);
  ASSERT_EQ(classes.size(), 1000u);
  EXPECT_EQ(classes[999].memory_limit_bytes, 1999);
}

}  // namespace
}  // namespace headrace
