#include "plan/planner/stage_table.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "plan/planner/schedule/schedule.h"
#include "plan/planner/test_job.h"

namespace headrace {
namespace {

// The table against plan/stage_memory.h, for every range a stage can have.
void ExpectTableEqualsStageMemory(const JobShape& job, const std::string& what) {
  const std::vector<WorkerClass> classes = {
      {50e9, 0, {1}, {}}, {20e9, 0, {3}, {}}, {1e14, 0, {1, DeviceKind::kCuda}, {}}};
  const int num_layers = static_cast<int>(job.layers.size());
  LayerTable layers(&job);
  for (int num_stages = 1; num_stages <= num_layers; ++num_stages) {
    const ScheduleShape shape = {num_stages, job.micro_batches(), job.recompute};
    Schedule schedule = MakeSchedule(job.schedule, shape);
    if (!job.training) schedule.assign(num_stages, {});
    std::vector<std::vector<StashLevel>> levels;
    for (const auto& actions : schedule) levels.push_back(StashLevels(actions));
    const StageTable table(&layers, &classes, num_stages, levels);
    for (int k = 0; k < num_stages; ++k) {
      for (int first = k; first < num_layers; ++first) {
        if (k == 0 && first > 0) break;
        const int last_end = num_layers - (num_stages - 1 - k);
        for (int end = k == num_stages - 1 ? num_layers : first + 1; end <= last_end; ++end) {
          for (int c = 0; c < 3; ++c) {
            const Cell cell = {first, end, c};
            EXPECT_EQ(table.Bytes(k, c, first, end),
                      StageMemory(job.Stage(k, num_stages, cell, classes[c].compute), schedule[k])
                          .total())
                << what << ": stage " << k << " of " << num_stages << ", layers " << first << " to "
                << end << ", class " << c;
          }
        }
      }
    }
  }
}

TEST(StageTableTest, AgreesWithStageMemoryOnEveryRange) {
  for (const auto schedule : {v1::SCHEDULE_KIND_GPIPE, v1::SCHEDULE_KIND_1F1B}) {
    for (const auto mode :
         {v1::RECOMPUTE_MODE_ALWAYS, v1::RECOMPUTE_MODE_EXCEPT_LAST, v1::RECOMPUTE_MODE_NEVER}) {
      for (const bool tied : {false, true}) {
        for (v1::JobSpec spec : {SmallGpt2(), SmallLlama()}) {
          spec.mutable_model()->set_tie_word_embeddings(tied);
          if (tied) spec.mutable_pipeline()->set_boundary_dtype(v1::BOUNDARY_DTYPE_BF16);
          if (!tied) spec.mutable_training()->set_precision(v1::PRECISION_BF16);
          spec.mutable_pipeline()->set_schedule(schedule);
          spec.mutable_pipeline()->set_recompute(mode);
          const std::string what = spec.ShortDebugString();
          ExpectTableEqualsStageMemory(*ResolveTraining(spec), what);
          ExpectTableEqualsStageMemory(*ResolveGenerate(spec), absl::StrCat("generate ", what));
        }
      }
    }
  }
}

// What the partition relies on: a larger range never costs less.
TEST(StageTableTest, CostsGrowWithTheRange) {
  for (const v1::JobSpec& spec : {SmallGpt2(), SmallLlama()}) {
    const JobShape job = *ResolveTraining(spec);
    const std::vector<WorkerClass> classes = {{50e9, 0, {1}, {}}};
    const int num_layers = static_cast<int>(job.layers.size());
    LayerTable layers(&job);
    std::vector<std::vector<StashLevel>> levels(3, {{4, 1}});
    const StageTable table(&layers, &classes, 3, levels);
    for (int first = 1; first < num_layers - 1; ++first) {
      for (int end = first + 2; end < num_layers; ++end) {
        for (const auto& [f, e] : {std::pair{first + 1, end}, std::pair{first, end - 1}}) {
          EXPECT_LE(table.Bytes(1, 0, f, e), table.Bytes(1, 0, first, end));
          EXPECT_LE(table.Seconds(1, 0, f, e), table.Seconds(1, 0, first, end));
        }
      }
    }
  }
}

TEST(StageTableTest, SecondsAreFlopsOverSpeedAndTheLinks) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_recompute(v1::RECOMPUTE_MODE_EXCEPT_LAST);
  const JobShape job = *ResolveTraining(spec);
  const std::vector<WorkerClass> classes = {{10e9, 0, {1}, {}}};
  LayerTable layers(&job);
  const StageTable table(&layers, &classes, 3, std::vector<std::vector<StashLevel>>(3));
  double flops = 0;
  for (int i : {2, 3}) {
    flops += ForwardFlops(job.model, job.layers[i], job.largest) +
             0.75 * RecomputeFlops(job.model, job.layers[i], job.largest) +
             BackwardFlops(job.model, job.layers[i], job.largest);
  }
  const double link_s = kLinkLatencyS + 2 * 32 * 64 * 4 / kLinkBytesPerSecond;
  EXPECT_NEAR(table.Seconds(1, 0, 2, 4), flops / 10e9 + 2 * link_s, 1e-12);
}

TEST(StageTableTest, MeasuredSecondsAddUpLayerByLayer) {
  const JobShape job = *ResolveTraining(SmallGpt2());
  std::vector<WorkerClass> classes = {{10e9, 0, {1}, {}}};
  classes[0].measured = {{LayerKind::kEmbedding, 1, 2, 3},
                         {LayerKind::kGpt2Block, 10, 20, 30},
                         {LayerKind::kHead, 100, 200, 300}};
  LayerTable layers(&job);
  const StageTable table(&layers, &classes, 2, std::vector<std::vector<StashLevel>>(2));
  const StageCosts first = table.Costs(0, {0, 4, 0}), last = table.Costs(1, {4, 8, 0});
  EXPECT_DOUBLE_EQ(first.forward_s, 31);
  EXPECT_DOUBLE_EQ(first.recompute_s, 62);
  EXPECT_DOUBLE_EQ(first.backward_s, 93);
  EXPECT_DOUBLE_EQ(last.forward_s, 130);
  EXPECT_DOUBLE_EQ(last.recompute_s, 260);
  EXPECT_DOUBLE_EQ(last.backward_s, 390);
}

TEST(StageTableTest, Bf16BoundariesHalveTheTimeOnALink) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_pipeline()->set_boundary_dtype(v1::BOUNDARY_DTYPE_BF16);
  const JobShape job = *ResolveTraining(spec);
  const std::vector<WorkerClass> classes = {{10e9, 0, {1}, {}}};
  LayerTable layers(&job);
  const StageTable table(&layers, &classes, 3, std::vector<std::vector<StashLevel>>(3));
  const StageCosts costs = table.Costs(1, {2, 4, 0});
  EXPECT_NEAR(costs.activation_s, kLinkLatencyS + 2 * 32 * 64 * 2 / kLinkBytesPerSecond, 1e-12);
  EXPECT_EQ(costs.gradient_s, costs.activation_s);
  EXPECT_FALSE(ResolveGenerate(spec)->bf16_boundaries);
}

TEST(ResolveTest, FillsInDefaults) {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_training()->set_micro_batches(3);
  const JobShape job = *ResolveTraining(spec);
  EXPECT_EQ(job.micro_batch_sequences, (std::vector<int64_t>{3, 3, 2}));
  EXPECT_EQ(job.largest.sequences, 3);
  EXPECT_EQ(job.schedule, v1::SCHEDULE_KIND_GPIPE);
  EXPECT_EQ(job.recompute, v1::RECOMPUTE_MODE_ALWAYS);
  EXPECT_EQ(job.credits, 2);
  EXPECT_EQ(ResolveGenerate(spec)->largest.length, 64);
}

}  // namespace
}  // namespace headrace
