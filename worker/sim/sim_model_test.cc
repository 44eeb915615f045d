#include "worker/sim/sim_model.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "plan/layer_spec.h"
#include "plan/stage_memory.h"
#include "worker/optimizer/optimizer.h"
#include "worker/sim/sim_ops.h"

namespace headrace {
namespace {

// A model of 8 billion parameters: 96 GiB of weights, gradients and moments.
StageShape LargeStage() {
  StageShape shape;
  shape.model.family = ModelFamily::kGpt2;
  shape.model.layers = 40;
  shape.model.heads = shape.model.kv_heads = 32;
  shape.model.head_size = 128;
  shape.model.width = 4096;
  shape.model.mlp_width = 4 * 4096;
  shape.model.context = 2048;
  shape.model.vocabulary = 50257;
  shape.layers = BuildLayers(shape.model);
  shape.largest = {4, 2048};
  return shape;
}

v1::SimDevice Device(double action_s) {
  v1::SimDevice device;
  device.set_forward_s(action_s);
  device.set_recompute_s(action_s);
  device.set_backward_s(action_s);
  return device;
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST(SimModelTest, AccountsForAllMemoryAndTouchesNone) {
  const StageShape shape = LargeStage();
  const v1::SimDevice device = Device(0.01);
  auto arena = Arena::Create(int64_t{200} << 30);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const int64_t before = ResidentBytes();
  const auto ops = CreateSimOps();
  auto model = CreateSimModel(device, shape, arena->get(), ops.get());
  ASSERT_TRUE(model.ok()) << model.status();
  v1::TrainingSpec training;
  training.set_steps(1);
  training.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
  auto optimizer = Optimizer::Create(training, &(*model)->parameters(), arena->get(), ops.get());
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();

  (*model)->Initialise(1);
  MicroBatch mb;
  mb.shape = shape.largest;
  const absl::Time start = absl::Now();
  (*model)->Forward(mb, nullptr, nullptr, nullptr);
  (*model)->Recompute(mb, nullptr, nullptr);
  (*model)->Backward(mb, nullptr, nullptr, nullptr, nullptr);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(29));
  (*optimizer)->Step(1, 1.0);
  (*model)->ZeroGradients();

  EXPECT_EQ((*arena)->in_use(MemoryKind::kWeights), WeightBytes(shape.model, shape.layers));
  EXPECT_EQ((*arena)->in_use(MemoryKind::kGradients), GradientBytes(shape.layers));
  EXPECT_EQ((*arena)->in_use(MemoryKind::kOptimizer), OptimizerBytes(shape.layers, 2));
  EXPECT_GT((*arena)->in_use(MemoryKind::kWeights), int64_t{30} << 30);
  EXPECT_LT(ResidentBytes() - before, int64_t{64} << 20);
}

TEST(SimModelTest, ASmallerMicroBatchTakesItsShareOfTheTime) {
  StageShape shape = LargeStage();
  const v1::SimDevice device = Device(0.2);
  auto arena = Arena::Create(int64_t{200} << 30);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const auto ops = CreateSimOps();
  auto model = CreateSimModel(device, shape, arena->get(), ops.get());
  ASSERT_TRUE(model.ok()) << model.status();
  MicroBatch mb;
  mb.shape = {1, 2048};
  const absl::Time start = absl::Now();
  (*model)->Forward(mb, nullptr, nullptr, nullptr);
  const absl::Duration took = absl::Now() - start;
  EXPECT_GE(took, absl::Milliseconds(50));
  EXPECT_LT(took, absl::Milliseconds(190));
}

}  // namespace
}  // namespace headrace
