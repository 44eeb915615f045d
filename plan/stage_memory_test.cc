#include "plan/stage_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using ::testing::ElementsAre;

// GPT-2 of 2 blocks, width 8, vocabulary 32, context 16; 3 sequences of 16 tokens a micro-batch.
constexpr int64_t kTokens = 48, kWidth = 8, kVocabulary = 32, kContext = 16;
constexpr int64_t kBoundary = kTokens * kWidth * 4;  // 1536, a multiple of the alignment

Model SmallModel(bool tied = true) {
  Model model;
  model.layers = 2;
  model.width = kWidth;
  model.heads = model.kv_heads = 2;
  model.head_size = 4;
  model.mlp_width = 32;
  model.context = kContext;
  model.vocabulary = kVocabulary;
  model.tied = tied;
  return model;
}

StageShape Stage(int64_t stage, int64_t num_stages, int64_t first, int64_t end, bool tied = true) {
  StageShape shape;
  shape.model = SmallModel(tied);
  const auto layers = BuildLayers(shape.model);
  shape.layers.assign(layers.begin() + first, layers.begin() + end);
  shape.stage = stage;
  shape.num_stages = num_stages;
  shape.largest = {3, 16};
  return shape;
}

std::vector<Action> Parse(const char* text) { return *ParseActions(text); }

v1::OptimizerSpec OptimizerOf(v1::OptimizerKind kind, double momentum) {
  v1::OptimizerSpec spec;
  spec.set_kind(kind);
  spec.set_momentum(momentum);
  return spec;
}

TEST(StageMemoryTest, OptimizersKeepTheirMoments) {
  EXPECT_EQ(OptimizerMoments(OptimizerOf(v1::OPTIMIZER_KIND_ADAMW, 0)), 2);
  EXPECT_EQ(OptimizerMoments(OptimizerOf(v1::OPTIMIZER_KIND_SGD, 0)), 0);
  EXPECT_EQ(OptimizerMoments(OptimizerOf(v1::OPTIMIZER_KIND_SGD, 0.9)), 1);
  EXPECT_EQ(OptimizerMoments(OptimizerOf(v1::OPTIMIZER_KIND_RMSPROP, 0)), 1);
  EXPECT_EQ(OptimizerMoments(OptimizerOf(v1::OPTIMIZER_KIND_RMSPROP, 0.9)), 2);
}

TEST(StageMemoryTest, StashLevelsFollowTheActions) {
  // Recompute: boundaries of all in flight, one working set.
  EXPECT_THAT(StashLevels(Parse("0F0 0F1 0F2 0R0 0B0 0R1 0B1 0R2 0B2")),
              ElementsAre(StashLevel{3, 1}));
  // Kept: a working set with every boundary.
  EXPECT_THAT(StashLevels(Parse("0F0 0F1 0F2 0B0 0B1 0B2")), ElementsAre(StashLevel{3, 3}));
  // All but the last recomputed.
  EXPECT_THAT(StashLevels(Parse("0F0 0F1 0F2 0R0 0B0 0R1 0B1 0B2")), ElementsAre(StashLevel{3, 2}));
  // A second working set.
  EXPECT_THAT(StashLevels(Parse("0F0 0F1 0F2 0R0 0R1 0B0 0R2 0B1 0B2")),
              ElementsAre(StashLevel{3, 2}));
  EXPECT_THAT(StashLevels(Parse("0F0 0F1 0B0 0F2 0B1 0B2")), ElementsAre(StashLevel{2, 2}));
  // Neither level exceeds the other.
  EXPECT_THAT(StashLevels(Parse("0F0 0F1 0F2 0R0 0B0 0R1 0R2 0B1 0B2")),
              ElementsAre(StashLevel{2, 2}, StashLevel{3, 1}));
  EXPECT_THAT(StashLevels({}), ElementsAre());
}

// On a CUDA device: the workspace of products, what the most demanding op takes, norms, and on the
// last stage targets and losses. Sizes worked out by hand, pieces of 256 bytes.
TEST(StageMemoryTest, ACudaStageCountsWhatItsOpsTake) {
  StageShape shape = Stage(1, 3, 1, 3);
  shape.precision = Precision::kBf16;
  EXPECT_EQ(DeviceBytes(shape), kBf16PanelBytes);
  shape.device = DeviceKind::kCuda;
  // Attention's backward with heads of 4: deltas, and in fp32 q, k, v, outputs, their gradients.
  // Squared norms of two blocks' 12 parameters each.
  EXPECT_EQ(DeviceBytes(shape),
            (32 << 20) + 512 + 2 * 4 * kTokens * 24 + 2 * 4 * kTokens * kWidth + 8 * 24);
  shape.model.head_size = 32;  // tensor cores take them as they are; sums of 32 columns are less
  EXPECT_EQ(DeviceBytes(shape), (32 << 20) + 512 + 8 * 24);
  // Boundaries are fp32, activations are not: input, its gradient, output.
  EXPECT_EQ(ConversionBytes(shape), 3 * 2 * kTokens * kWidth);
  shape.bf16_boundaries = true;
  EXPECT_EQ(ConversionBytes(shape), 0);
  shape = Stage(2, 3, 3, 4);
  shape.device = DeviceKind::kCuda;
  shape.micro_batches = 9;
  // fp32: losses of 48 rows; two sums of 8 columns are no more than that; targets, losses of nine
  // micro-batches and of an evaluation's, norms of two parameters.
  EXPECT_EQ(DeviceBytes(shape), (32 << 20) + 512 + 192 + 128 + 64 + 64);
  shape.training = false;
  EXPECT_EQ(DeviceBytes(shape), (32 << 20) + 512 + 4 * kVocabulary);
}

TEST(StageMemoryTest, ACudaStageInBf16KeepsHalvesOfActivationsAndRoundedWeights) {
  const auto actions = Parse("1F0 1F1 1R0 1B0 1R1 1B1");
  StageShape shape = Stage(1, 3, 1, 3);  // both blocks
  const StageBytes fp32 = StageMemory(shape, actions);
  shape.precision = Precision::kBf16;
  shape.device = DeviceKind::kCuda;
  const StageBytes bytes = StageMemory(shape, actions);
  // A block's parameters once more, 2 bytes each, each rounded up to 64.
  const int64_t rounded = 4 * 64 + (24 * 8 * 2 + 64) + (8 * 8 * 2 + 64) + 2 * (32 * 8 * 2 + 64);
  EXPECT_EQ(bytes.weights, fp32.weights + 2 * rounded);
  EXPECT_EQ(bytes.gradients, fp32.gradients);
  EXPECT_EQ(bytes.optimizer, fp32.optimizer);
  // Statistics and log-sum-exp in fp32; eleven tensors of a token's width in bfloat16.
  const int64_t half = kBoundary / 2;
  const int64_t saved = 4 * kTokens * 4 + 3 * 2 * 16 * 4 + 11 * half;
  EXPECT_EQ(WorkingSetBytes(shape), 2 * saved + half);
  EXPECT_EQ(bytes.stash, 2 * kBoundary + 2 * saved + half) << "boundaries travel in fp32";
  // Two outputs, a layer's saved tensors, and the MLP's activation or attention's scratch; then the
  // three buffers between fp32 boundaries and layers.
  const int64_t temporaries = std::max(4 * half, AttentionScratchBytes(16, 4, 1));
  EXPECT_EQ(bytes.workspace, 2 * half + saved + temporaries + 3 * half + DeviceBytes(shape));
  EXPECT_EQ(bytes.link, fp32.link);
  shape.bf16_boundaries = true;
  EXPECT_EQ(ConversionBytes(shape), 0);
  EXPECT_EQ(StageMemory(shape, actions).link, fp32.link / 2);
}

// Whoever owns the tie's weight keeps no rounded copy of it: the head has one, in either case.
TEST(StageMemoryTest, ACudaTieIsRoundedOnceForTheHead) {
  const Layout on = LayoutOn(DeviceKind::kCuda, Precision::kBf16, 1);
  for (const StageShape& shape : {Stage(1, 2, 3, 4), Stage(0, 1, 0, 4)}) {
    int64_t rounded = 0;
    for (const LayerSpec& layer : shape.layers) {
      if (layer.kind == LayerKind::kHead) rounded += 2 * 64 + AlignUp(2 * kVocabulary * kWidth);
      if (layer.kind == LayerKind::kGpt2Block) {
        rounded += 4 * 64 + (24 * 8 * 2 + 64) + (8 * 8 * 2 + 64) + 2 * (32 * 8 * 2 + 64);
      }
    }
    EXPECT_EQ(WeightBytes(shape.model, shape.layers, on),
              WeightBytes(shape.model, shape.layers) + rounded);
  }
}

// Sums written out by hand from the shapes, independent of plan/layer_spec.cc.
TEST(StageMemoryTest, MiddleStageCountsEveryKind) {
  const StageShape shape = Stage(1, 3, 1, 3);  // both blocks
  const StageBytes bytes = StageMemory(shape, Parse("1F0 1F1 1R0 1B0 1R1 1B1"));

  // A block's parameters, each rounded up to 64 bytes: two norms of 8 + 8, the three projections'
  // matrices and biases, the MLP's.
  const int64_t block = 4 * 64              // norms
                        + 24 * 8 * 4 + 128  // query, key, value: 96 bytes of bias
                        + 8 * 8 * 4 + 64    // attention's projection
                        + 32 * 8 * 4 + 128  // MLP in
                        + 8 * 32 * 4 + 64;  // MLP out
  EXPECT_EQ(bytes.weights, 2 * block);
  EXPECT_EQ(bytes.gradients, 2 * block);
  EXPECT_EQ(bytes.optimizer, 4 * block);

  // Kept by a block: two norms' mean, rstd, output; qkv, attention's output and log-sum-exp, the
  // residual, the MLP's input.
  const int64_t saved = 2 * (2 * kTokens * 4 + kBoundary) + 3 * kBoundary + kBoundary +
                        3 * 2 * 16 * 4 + kBoundary + 4 * kBoundary;
  EXPECT_EQ(WorkingSetBytes(shape), 2 * saved + kBoundary);
  EXPECT_EQ(bytes.stash, 2 * kBoundary + WorkingSetBytes(shape));
  EXPECT_EQ(bytes.workspace,
            StageWorkspaceBytes(shape.model, shape.layers, shape.largest, {}, true));

  // Two credits: 2 activations and 3 gradients on the way in's side, 3 and 3 on the other.
  EXPECT_EQ(bytes.link, (2 + 3 + 3 + 3) * kBoundary);
}

TEST(StageMemoryTest, EndsCarryTheTieOnTheirLinks) {
  const int64_t tie = kVocabulary * kWidth * 4;
  const auto actions = Parse("0F0 0B0");
  EXPECT_EQ(StageMemory(Stage(0, 2, 0, 2), actions).link, 6 * kBoundary + tie);
  EXPECT_EQ(StageMemory(Stage(1, 2, 2, 4), actions).link, 5 * kBoundary + tie);
  EXPECT_EQ(StageMemory(Stage(0, 2, 0, 2, false), actions).link, 6 * kBoundary);
  EXPECT_EQ(StageMemory(Stage(1, 2, 2, 4, false), actions).link, 5 * kBoundary);
  EXPECT_EQ(StageMemory(Stage(1, 3, 1, 3), actions).link, 11 * kBoundary);
  EXPECT_EQ(StageMemory(Stage(0, 1, 0, 4), actions).link, 0);
}

// Half a boundary wherever one travels or is kept as it came, and the layers' fp32 ends of them:
// the input and its gradient, and the output, which B uses for its gradient.
TEST(StageMemoryTest, Bf16BoundariesAreHalfAsWideAndAreWidenedInWorkspace) {
  const auto actions = Parse("1F0 1F1 1R0 1B0 1R1 1B1");
  StageShape shape = Stage(1, 3, 1, 3);
  const StageBytes fp32 = StageMemory(shape, actions);
  shape.bf16_boundaries = true;
  const StageBytes bf16 = StageMemory(shape, actions);
  EXPECT_EQ(bf16.link, 11 * kBoundary / 2);
  EXPECT_EQ(bf16.stash, fp32.stash - 2 * kBoundary / 2);
  EXPECT_EQ(bf16.workspace, fp32.workspace + 3 * kBoundary);
  EXPECT_EQ(bf16.weights, fp32.weights);
  shape = Stage(0, 3, 0, 2);
  shape.bf16_boundaries = true;
  EXPECT_EQ(ConversionBytes(shape), kBoundary);
  EXPECT_EQ(BoundaryBytes(shape), kTokens * 4);  // token ids
  shape = Stage(2, 3, 3, 4);
  shape.bf16_boundaries = true;
  EXPECT_EQ(ConversionBytes(shape), 2 * kBoundary);
  shape = Stage(0, 1, 0, 4);
  shape.bf16_boundaries = true;
  EXPECT_EQ(ConversionBytes(shape), 0);
}

TEST(StageMemoryTest, Bf16ProductsCostTwoPanelsAThread) {
  const auto actions = Parse("1F0 1R0 1B0");
  StageShape shape = Stage(1, 3, 1, 3);
  shape.threads = 3;
  for (const bool training : {true, false}) {
    shape.training = training;
    shape.precision = Precision::kFp32;
    StageBytes expected = StageMemory(shape, actions);
    expected.workspace += 3 * (768 * 1024 * 2 + 224 * 400 * 4);
    for (const Precision precision : {Precision::kBf16, Precision::kBf16Emulated}) {
      shape.precision = precision;
      const StageBytes bf16 = StageMemory(shape, actions);
      EXPECT_EQ(bf16.workspace, expected.workspace);
      EXPECT_EQ(bf16.total(), expected.total());
    }
  }
}

TEST(StageMemoryTest, StageZeroKeepsTokenIdsAsItsBoundary) {
  const StageShape shape = Stage(0, 2, 0, 1);
  EXPECT_EQ(BoundaryBytes(shape), kTokens * 4);
  EXPECT_EQ(WorkingSetBytes(shape), 0);  // the embedding's backward needs the ids only
  EXPECT_EQ(PeakStash(shape, Parse("0F0 0F1 0B0 0B1")).bytes, 2 * kTokens * 4);
}

TEST(StageMemoryTest, GenerateHoldsWeightsOneBoundaryAndLinks) {
  StageShape shape = Stage(1, 3, 1, 3);
  shape.training = false;
  const StageBytes bytes = StageMemory(shape, {});
  EXPECT_EQ(bytes.weights, StageMemory(Stage(1, 3, 1, 3), {}).weights);
  EXPECT_EQ(bytes.gradients, 0);
  EXPECT_EQ(bytes.optimizer, 0);
  EXPECT_EQ(bytes.stash, kBoundary);
  EXPECT_EQ(bytes.link, (2 + 3) * kBoundary);
  EXPECT_EQ(bytes.total(), bytes.weights + bytes.stash + bytes.workspace + bytes.link);
}

}  // namespace
}  // namespace headrace
