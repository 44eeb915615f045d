#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "plan/planner/planner_testing.h"
#include "plan/planner/stage_table.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST(PlannerWorkersTest, AFasterWorkerGetsMoreLayers) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  const v1::Plan plan = PlanOk(spec, {{"slow", 1e9, kPlenty, 1}, {"fast", 3e9, kPlenty, 1}});
  for (const v1::StagePlan& stage : plan.stage()) {
    const int64_t layers = stage.end_layer() - stage.first_layer();
    EXPECT_EQ(layers >= 5, stage.worker() == "fast") << stage.worker() << " has " << layers;
  }
}

TEST(PlannerWorkersTest, ASmallWorkerGetsWhatFits) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  const auto whole = Total(PlanOk(spec, EqualWorkers(2, kPlenty)).stage(0).memory());
  const std::vector<PlanWorker> workers = {{"small", 9e9, whole * 2 / 3, 1},
                                           {"large", 1e9, kPlenty, 1}};
  const v1::Plan plan = PlanOk(spec, workers);
  ExpectSound(spec, plan, workers);
}

TEST(PlannerWorkersTest, Bf16TakesWorkersWhoseCpuHasItOrSaysWhoHasNot) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_training()->set_precision(v1::PRECISION_BF16);
  std::vector<PlanWorker> workers = EqualWorkers(3, kPlenty);
  workers[1].bf16 = false;
  spec.mutable_pipeline()->set_stages(2);
  const v1::Plan plan = PlanOk(spec, workers);
  EXPECT_EQ(plan.precision(), v1::PRECISION_BF16);
  EXPECT_EQ(plan.stage(0).worker(), "w0");
  EXPECT_EQ(plan.stage(1).worker(), "w2");
  spec.mutable_pipeline()->set_stages(3);
  EXPECT_EQ(Refusal(spec, workers),
            "precision bf16 needs 3 workers whose device multiplies bf16 (CPUs: avx512_bf16; CUDA: "
            "compute capability 8.0), has 2: w1 has not; training.bf16_emulate: true computes it "
            "on any CPU, slowly");
  spec.mutable_pipeline()->set_stages(4);
  EXPECT_EQ(PlanJob(spec, nullptr, workers).status(),
            absl::UnavailableError("needs 4 workers, has 3"));
  spec.mutable_pipeline()->set_stages(3);
  spec.mutable_training()->set_bf16_emulate(true);
  EXPECT_TRUE(PlanOk(spec, workers).bf16_emulate());
  EXPECT_EQ(PlanOk(SmallGpt2(), workers).precision(), v1::PRECISION_FP32);
  spec.mutable_training()->set_bf16_emulate(false);
  workers[0].bf16 = workers[2].bf16 = false;
  EXPECT_EQ(PlanGenerate(spec, workers).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(PlannerTest, Tf32TakesAWorkerOnACudaDevice) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_training()->set_tf32(true);
  std::vector<PlanWorker> workers = EqualWorkers(2, kPlenty);
  EXPECT_EQ(Refusal(spec, workers),
            "training.tf32 is of CUDA devices, and no worker has one: leave it out");
  workers[1].device = DeviceKind::kCuda;
  EXPECT_TRUE(PlanOk(spec, workers).tf32());
}

TEST(PlannerTest, HeadsWithoutACudaKernelTakeWorkersThatComputeOnACpu) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_model()->set_n_embd(258);
  spec.mutable_model()->set_n_head(2);  // heads of 129
  std::vector<PlanWorker> workers = EqualWorkers(3, kPlenty);
  workers[0].device = workers[2].device = DeviceKind::kCuda;
  spec.mutable_pipeline()->set_stages(1);
  EXPECT_EQ(PlanOk(spec, workers).stage(0).worker(), "w1");
  spec.mutable_pipeline()->set_stages(2);
  EXPECT_EQ(Refusal(spec, workers),
            "attention heads of 129 need 2 workers that compute on a CPU, since CUDA devices have "
            "kernels for heads of at most 128; has 1: w0, w2 have not");
  spec.mutable_model()->set_n_embd(256);
  const v1::Plan plan = PlanOk(spec, workers);
  for (const v1::StagePlan& stage : plan.stage()) {
    EXPECT_EQ(stage.device(), stage.worker() == "w1" ? "" : "cuda");
  }
}

// Milliseconds of a block and of a head, a third of them forward; an embedding takes nothing.
std::vector<MeasuredCost> Measured(double block_ms, double head_ms) {
  const auto cost = [](LayerKind kind, double ms) {
    return MeasuredCost{kind, ms / 3e3, 0, 2 * ms / 3e3};
  };
  return {cost(LayerKind::kEmbedding, 0), cost(LayerKind::kGpt2Block, block_ms),
          cost(LayerKind::kHead, head_ms)};
}

TEST(PlannerWorkersTest, MeasuredSecondsMoveTheCut) {
  v1::JobSpec spec = SmallGpt2();  // an embedding, blocks 1 to 6, head 7
  spec.mutable_pipeline()->set_stages(2);
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_NEVER);
  std::vector<PlanWorker> workers = EqualWorkers(2, kPlenty);
  const v1::Plan counted = PlanOk(spec, workers);
  EXPECT_EQ(counted.stage(1).first_layer(), 4);
  EXPECT_EQ(counted.stage(0).cost_source(), v1::COST_SOURCE_FLOPS);

  // 5 blocks of 30 ms against one and a head of 120 ms.
  for (PlanWorker& worker : workers) worker.measured = Measured(30, 120);
  const v1::Plan measured = PlanOk(spec, workers);
  ExpectSound(spec, measured, workers);
  EXPECT_EQ(measured.stage(1).first_layer(), 6);
  for (const v1::StagePlan& stage : measured.stage()) {
    EXPECT_EQ(stage.cost_source(), v1::COST_SOURCE_MEASURED);
    EXPECT_NEAR(stage.forward_s(), 0.050, 1e-9);
    EXPECT_NEAR(stage.backward_s(), 0.100, 1e-9);
  }
  // Both stages take the same: the bubble is GPipe's, but for what links take.
  EXPECT_NEAR(measured.bubble(), measured.ideal_bubble(), 0.01);
}

TEST(PlannerWorkersTest, MeasuredSecondsTellWorkersApart) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  std::vector<PlanWorker> workers = EqualWorkers(2, kPlenty);
  workers[0].measured = Measured(60, 10);
  workers[1].measured = Measured(30, 10);
  const v1::Plan plan = PlanOk(spec, workers);
  for (const v1::StagePlan& stage : plan.stage()) {
    const int64_t blocks =
        std::min<int64_t>(stage.end_layer(), 7) - std::max<int64_t>(stage.first_layer(), 1);
    EXPECT_EQ(blocks, stage.worker() == "w0" ? 2 : 4) << plan.ShortDebugString();
  }
}

// A layer that was not measured takes its FLOPs at the speed the measured ones showed, not at that
// of bare matrix products: else one missing measurement would move the cut by itself.
TEST(PlannerWorkersTest, AMissingMeasurementIsFilledInAtTheSpeedOfTheOthers) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  std::vector<PlanWorker> workers = EqualWorkers(2, kPlenty);
  const JobShape job = *ResolveTraining(spec);
  const double slow = 1e6;  // FLOPs a second, of all layers alike
  const auto at = [&](int layer) {
    const LayerSpec& l = job.layers[layer];
    return MeasuredCost{l.kind, ForwardFlops(job.model, l, job.largest) / slow,
                        RecomputeFlops(job.model, l, job.largest) / slow,
                        BackwardFlops(job.model, l, job.largest) / slow};
  };
  for (PlanWorker& worker : workers) worker.measured = {at(1)};
  const v1::Plan partly = PlanOk(spec, workers);
  for (PlanWorker& worker : workers) worker.measured = {at(0), at(1), at(7)};
  const v1::Plan wholly = PlanOk(spec, workers);
  for (int k = 0; k < 2; ++k) {
    EXPECT_EQ(partly.stage(k).cost_source(), v1::COST_SOURCE_MIXED);
    EXPECT_EQ(partly.stage(k).first_layer(), wholly.stage(k).first_layer());
    EXPECT_NEAR(partly.stage(k).forward_s(), wholly.stage(k).forward_s(), 1e-6);
    EXPECT_NEAR(partly.stage(k).backward_s(), wholly.stage(k).backward_s(), 1e-6);
  }
}

// Three hosts: a with one worker, b with two, c with one fast one.
std::vector<PlanWorker> WorkersOnHosts() {
  std::vector<PlanWorker> workers = EqualWorkers(4, kPlenty);
  workers[3].flops_per_second *= 8;
  const char* const kHosts[] = {"a", "b", "b", "c"};
  for (size_t i = 0; i < workers.size(); ++i) workers[i].host = kHosts[i];
  return workers;
}

TEST(PlannerWorkersTest, SharedMemoryKeepsAllStagesOnOneHost) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  spec.mutable_pipeline()->set_transport(v1::TRANSPORT_SHM);
  const std::vector<PlanWorker> workers = WorkersOnHosts();
  const auto plan = PlanJob(spec, nullptr, workers);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stage(0).worker(), workers[1].name);
  EXPECT_EQ(plan->stage(1).worker(), workers[2].name);
  spec.mutable_pipeline()->set_stages(0);
  const auto fastest = PlanJob(spec, nullptr, workers);
  ASSERT_TRUE(fastest.ok()) << fastest.status();
  EXPECT_EQ(fastest->stages(), 1);
  EXPECT_EQ(fastest->stage(0).worker(), workers[3].name);
}

TEST(PlannerWorkersTest, SharedMemoryAcrossHostsIsRefusedNamingTwoWorkers) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(3);
  std::vector<PlanWorker> workers = WorkersOnHosts();
  EXPECT_TRUE(PlanJob(spec, nullptr, workers).ok());
  spec.mutable_pipeline()->set_transport(v1::TRANSPORT_SHM);
  const absl::Status refused = PlanJob(spec, nullptr, workers).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat("pipeline.transport: shm, but no host has workers enough: "
                                     "worker ",
                                     workers[1].name, " (one of 2 on its host) and worker ",
                                     workers[0].name, " are on different hosts")));
  // Who tells no host shares with nobody; machines one only asks about are taken for one.
  for (PlanWorker& worker : workers) worker.host = worker.host == "b" ? "b" : "";
  EXPECT_FALSE(PlanJob(spec, nullptr, workers).ok());
  for (PlanWorker& worker : workers) worker.host = "";
  EXPECT_TRUE(PlanJob(spec, nullptr, workers).ok());
}

TEST(PlannerWorkersTest, TransportsOfCudaDevicesTakeWorkersThatHaveOne) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_stages(2);
  std::vector<PlanWorker> workers = WorkersOnHosts();
  workers[0].device = workers[1].device = workers[2].device = DeviceKind::kCuda;
  for (PlanWorker& worker : workers) worker.memory_limit_bytes *= 4;
  // cuda_ipc: of one host, which is b; nccl: of any.
  spec.mutable_pipeline()->set_transport(v1::TRANSPORT_CUDA_IPC);
  auto plan = PlanJob(spec, nullptr, workers);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stage(0).worker(), workers[1].name);
  EXPECT_EQ(plan->stage(1).worker(), workers[2].name);
  spec.mutable_pipeline()->set_transport(v1::TRANSPORT_NCCL);
  spec.mutable_pipeline()->set_stages(3);
  plan = PlanJob(spec, nullptr, workers);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const v1::StagePlan& stage : plan->stage()) EXPECT_EQ(stage.device(), "cuda");
  spec.mutable_pipeline()->set_stages(4);
  EXPECT_THAT(std::string(PlanJob(spec, nullptr, workers).status().message()),
              HasSubstr(absl::StrCat("pipeline.transport: nccl is for CUDA devices: it needs 4 "
                                     "workers with one, has 3; worker ",
                                     workers[3].name, " has none; say auto")));
  spec.mutable_pipeline()->set_stages(3);
  spec.mutable_pipeline()->set_transport(v1::TRANSPORT_CUDA_IPC);
  EXPECT_THAT(std::string(PlanJob(spec, nullptr, workers).status().message()),
              HasSubstr("pipeline.transport: cuda_ipc, but no host has workers enough"));
  // A single stage sends nobody anything.
  spec.mutable_pipeline()->set_stages(1);
  for (PlanWorker& worker : workers) worker.device = DeviceKind::kCpu;
  EXPECT_TRUE(PlanJob(spec, nullptr, workers).ok());
}

}  // namespace
}  // namespace headrace
