#include "plan/layer_spec.h"

#include "gtest/gtest.h"

namespace headrace {
namespace {

// GPT-2 124M and TinyLlama 1.1B, as their config.json say.
Model Gpt2Small() {
  Model m;
  m.family = ModelFamily::kGpt2;
  m.layers = 12, m.width = 768, m.heads = 12, m.kv_heads = 12, m.head_size = 64;
  m.mlp_width = 3072, m.context = 1024, m.vocabulary = 50257, m.tied = true;
  return m;
}

Model TinyLlama() {
  Model m;
  m.family = ModelFamily::kLlama;
  m.layers = 22, m.width = 2048, m.heads = 32, m.kv_heads = 4, m.head_size = 64;
  m.mlp_width = 5632, m.context = 2048, m.vocabulary = 32000;
  return m;
}

// Sizes that no power of two divides, so that rounding up shows.
Model Odd(ModelFamily family) {
  Model m;
  m.family = family;
  m.layers = 1, m.width = 6, m.heads = 3, m.kv_heads = family == ModelFamily::kGpt2 ? 3 : 1;
  m.head_size = 2, m.mlp_width = 5, m.context = 9, m.vocabulary = 11, m.tied = true;
  return m;
}

int64_t Parameters(const Model& m) {
  int64_t total = 0;
  for (const LayerSpec& layer : BuildLayers(m)) total += layer.parameter_elements();
  return total;
}

TEST(LayerSpec, KnownModelsHaveTheirKnownNumberOfParameters) {
  EXPECT_EQ(Parameters(Gpt2Small()), 124'439'808);
  EXPECT_EQ(Parameters(TinyLlama()), 1'100'048'384);
}

TEST(LayerSpec, AModelIsAnEmbeddingItsBlocksAndAHead) {
  const auto layers = BuildLayers(Gpt2Small());
  ASSERT_EQ(layers.size(), 14u);
  EXPECT_EQ(layers[0].name, "embedding");
  EXPECT_EQ(layers[1].name, "block 0");
  EXPECT_EQ(layers[12].name, "block 11");
  EXPECT_EQ(layers[13].name, "head");
  for (size_t i = 0; i < layers.size(); ++i) EXPECT_EQ(layers[i].index, static_cast<int64_t>(i));
}

TEST(LayerSpec, ParametersCarryHuggingFacesNames) {
  const auto gpt2 = BuildLayers(Gpt2Small());
  EXPECT_EQ(gpt2[0].parameters[0].name, "transformer.wte.weight");
  EXPECT_EQ(gpt2[3].parameters[2].name, "transformer.h.2.attn.c_attn.weight");
  EXPECT_EQ(gpt2[3].parameters[2].shape, (std::vector<int64_t>{2304, 768}));
  EXPECT_EQ(gpt2[13].parameters[1].name, "transformer.ln_f.bias");
  EXPECT_EQ(gpt2[13].borrowed[0].name, "lm_head.weight");
  EXPECT_EQ(gpt2[13].borrowed[0].owner, gpt2[0].parameters[0].name);
  const auto llama = BuildLayers(TinyLlama());
  EXPECT_EQ(llama[0].parameters[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(llama[1].parameters[2].name, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(llama[1].parameters[2].shape, (std::vector<int64_t>{256, 2048}));
  EXPECT_TRUE(llama[23].borrowed.empty());
  EXPECT_EQ(llama[23].parameters[1].name, "lm_head.weight");
}

TEST(LayerSpec, ResidualProjectionsOfGpt2StartSmaller) {
  const auto layers = BuildLayers(Gpt2Small());
  EXPECT_DOUBLE_EQ(layers[1].parameters[2].init_std, 0.02);
  EXPECT_DOUBLE_EQ(layers[1].parameters[4].init_std, 0.02 / std::sqrt(24.0));
  EXPECT_DOUBLE_EQ(layers[1].parameters[10].init_std, 0.02 / std::sqrt(24.0));
}

TEST(LayerSpec, ATieWithinOneStageNeedsNoSecondWeightButASecondGradient) {
  const Model m = Odd(ModelFamily::kGpt2);
  const auto layers = BuildLayers(m);
  // wte 11·6, wpe 9·6, ln_f 6 and 6 floats, each rounded up to 64 bytes.
  const int64_t wte = 320, wpe = 256, norm = 2 * 64;
  // Six gains and biases of 6 and two of 18 and 5; matrices 18·6, 6·6, 5·6, 6·5.
  const int64_t block = 6 * 64 + 128 + 64 + 448 + 192 + 128 + 128;
  EXPECT_TRUE(BorrowsFromOwnStage(layers));
  EXPECT_EQ(WeightBytes(m, layers), wte + wpe + block + norm);
  EXPECT_EQ(GradientBytes(layers), wte + wpe + block + norm + wte);
  const std::vector<LayerSpec> last(layers.begin() + 1, layers.end());
  EXPECT_FALSE(BorrowsFromOwnStage(last));
  EXPECT_EQ(WeightBytes(m, last), block + norm + wte);
  EXPECT_EQ(GradientBytes(last), block + norm + wte);
  EXPECT_EQ(OptimizerBytes(last, 2), 2 * (block + norm));
}

TEST(LayerSpec, JoinedMatricesAreOneTensorAndAStageHasOnePairOfRotaryTables) {
  const Model m = Odd(ModelFamily::kLlama);
  const auto layers = BuildLayers(m);
  const std::vector<LayerSpec> block = {layers[1]};
  // q 6·6, k 2·6, v 2·6 floats in one tensor of 240 bytes; o 6·6; gate and up 2·5·6; down 6·5.
  const int64_t weights = 2 * 64 + 256 + 192 + 256 + 128;
  EXPECT_EQ(RopeTableBytes(m), 64);  // 9 · 1 floats
  EXPECT_EQ(WeightBytes(m, block), weights + 2 * 64);
  EXPECT_EQ(GradientBytes(block), weights);
  EXPECT_EQ(WeightBytes(m, {layers[1], layers[1]}), 2 * weights + 2 * 64);
  // The optimizer's moments stay apart: q 192, k 64, v 64 instead of 256; gate and up 128 each.
  EXPECT_EQ(OptimizerBytes(block, 1), 2 * 64 + 192 + 64 + 64 + 192 + 128 + 128 + 128);
}

TEST(LayerSpec, SavedBytesAreThoseOfTheTensorsListed) {
  const Model m = Odd(ModelFamily::kGpt2);
  const auto layers = BuildLayers(m);
  const MicroBatchShape shape{2, 5};  // 10 tokens
  EXPECT_EQ(SavedBytes(m, layers[0], shape), 0);
  // Of 10 tokens: mean 64, rstd 64, norm [10,6] 256; qkv [10,18] 768; attention 256; lse [2,3,5]
  // 128; residual 256; norm again; mlp [10,5] 256.
  const int64_t norm = 64 + 64 + 256;
  EXPECT_EQ(SavedBytes(m, layers[1], shape), norm + 768 + 256 + 128 + 256 + norm + 256);
  EXPECT_EQ(SavedBytes(m, layers[2], shape), 0);
  const Model l = Odd(ModelFamily::kLlama);
  const auto llama = BuildLayers(l);
  // No mean; qkv [10,10] 448; gate and up [10,10] 448.
  EXPECT_EQ(SavedBytes(l, llama[1], shape), 2 * (64 + 256) + 448 + 256 + 128 + 256 + 448);
}

TEST(LayerSpec, BoundariesAreIdsThenHiddenStatesThenNothing) {
  const Model m = Odd(ModelFamily::kGpt2);
  const auto layers = BuildLayers(m);
  const MicroBatchShape shape{3, 7};
  EXPECT_EQ(InputBytes(m, layers[0], shape), 128);
  EXPECT_EQ(OutputBytes(m, layers[0], shape), 512);
  EXPECT_EQ(InputBytes(m, layers[1], shape), 512);
  EXPECT_EQ(InputBytes(m, layers[2], shape), 512);
  EXPECT_EQ(OutputBytes(m, layers[2], shape), 0);
}

TEST(LayerSpec, TheHeadNeverHoldsMoreThanItsBlockOfLogits) {
  const Model m = Gpt2Small();
  const LayerSpec head = BuildLayers(m).back();
  // Logits, hidden states, mean and rstd.
  EXPECT_EQ(ForwardWorkspaceBytes(m, head, {8, 1024}), 256 * 4 * (50257 + 768 + 2));
  EXPECT_EQ(ForwardWorkspaceBytes(m, head, {1, 3}), AlignUp(3 * 50257 * 4) + 3 * 768 * 4 + 128);
  for (const MicroBatchShape shape : {MicroBatchShape{8, 1024}, MicroBatchShape{1, 3}}) {
    EXPECT_EQ(BackwardWorkspaceBytes(m, head, shape), ForwardWorkspaceBytes(m, head, shape));
  }
}

TEST(LayerSpec, AStagesWorkspaceServesItsHungriestLayer) {
  const Model m = Odd(ModelFamily::kGpt2);
  const auto layers = BuildLayers(m);
  const MicroBatchShape shape{2, 5};
  const int64_t two = 2 * 256;
  EXPECT_EQ(StageWorkspaceBytes(m, {layers[0]}, shape, {}, true), two);
  const int64_t scratch = AttentionScratchBytes(5, 2, 1);
  EXPECT_EQ(StageWorkspaceBytes(m, layers, shape, {}, false),
            two + SavedBytes(m, layers[1], shape) + scratch);
  // Where every forward keeps what it makes, there is nothing but temporaries.
  EXPECT_EQ(StageWorkspaceBytes(m, layers, shape, {}, true, false),
            two + BackwardWorkspaceBytes(m, layers[1], shape));
  // Backward of the block: two gradients, and q, k, v's beside attention's scratch.
  EXPECT_EQ(BackwardWorkspaceBytes(m, layers[1], shape), two + 768 + scratch);
}

TEST(LayerSpec, FlopsOfGpt2AreTheUsualSixPerParameterAndToken) {
  const Model m = Gpt2Small();
  const MicroBatchShape shape{1, 512};
  double blocks = 0, both = 0;
  for (const LayerSpec& layer : BuildLayers(m)) {
    blocks += ForwardFlops(m, layer, shape);
    both += ForwardFlops(m, layer, shape) + BackwardFlops(m, layer, shape);
  }
  const double head = 50257.0 * 768;  // all of it in backward
  const double matrices = 12.0 * 12 * 768 * 768 + head;
  const double attention = 12.0 * 2 * 768 * 513;  // forward, causal, per token
  EXPECT_NEAR(blocks / 512, 2 * (matrices - head) + attention, 0.02 * 2 * matrices);
  EXPECT_NEAR(both / 512, 6 * matrices + 3.5 * attention, 0.02 * 6 * matrices);
}

}  // namespace
}  // namespace headrace
