#include "plan/layer_cost.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <functional>

namespace headrace {
namespace {

v1::JobSpec Gpt2() {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        model {
          family: MODEL_FAMILY_GPT2
          vocab_size: 256
          n_layer: 6
          n_embd: 64
          n_head: 4
          n_positions: 64
        }
        training { batch_size: 9 micro_batches: 4 sequence_length: 32 }
      )pb",
      &spec));
  return spec;
}

std::vector<DistinctLayer> Distinct(const v1::JobSpec& spec) {
  const auto layers = DistinctLayers(spec);
  EXPECT_TRUE(layers.ok()) << layers.status();
  return *layers;
}

TEST(LayerCostTest, OneLayerOfEachKindWithTheLargestMicroBatch) {
  const std::vector<DistinctLayer> layers = Distinct(Gpt2());
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0].layer, 0);
  EXPECT_EQ(layers[1].layer, 1);
  EXPECT_EQ(layers[2].layer, 7);
  EXPECT_EQ(layers[1].signature,
            "gpt2 block, width 64, heads 4/4, mlp 256, dropout 0/0 · 3 × 32 · fp32");
  EXPECT_EQ(layers[2].signature, "gpt2 head, vocabulary 256, width 64 · 3 × 32 · fp32");
  const Model model = *ResolveModel(Gpt2().model());
  const std::vector<LayerSpec> all = BuildLayers(model);
  for (const DistinctLayer& layer : layers) EXPECT_EQ(all[layer.layer].kind, layer.kind);
}

// Which signatures each change of the job touches: embedding, block, head.
TEST(LayerCostTest, ASignatureHasAllThatSecondsDependOnAndNothingElse) {
  struct Case {
    const char* what;
    std::function<void(v1::JobSpec*)> change;
    bool embedding, block, head;
  };
  const Case cases[] = {
      {"more blocks", [](auto* s) { s->mutable_model()->set_n_layer(12); }, false, false, false},
      {"steps", [](auto* s) { s->mutable_training()->set_steps(5); }, false, false, false},
      {"same micro-batch",
       [](auto* s) {
         s->mutable_training()->set_batch_size(6);
         s->mutable_training()->set_micro_batches(2);
       },
       false, false, false},
      {"width", [](auto* s) { s->mutable_model()->set_n_embd(128); }, true, true, true},
      {"heads", [](auto* s) { s->mutable_model()->set_n_head(2); }, false, true, false},
      {"mlp", [](auto* s) { s->mutable_model()->set_n_inner(100); }, false, true, false},
      {"vocabulary", [](auto* s) { s->mutable_model()->set_vocab_size(512); }, true, false, true},
      {"dropout", [](auto* s) { s->mutable_model()->set_resid_pdrop(0.1); }, false, true, false},
      {"attention dropout", [](auto* s) { s->mutable_model()->set_attn_pdrop(0.1); }, false, true,
       false},
      {"embedding dropout", [](auto* s) { s->mutable_model()->set_embd_pdrop(0.1); }, true, false,
       false},
      {"bf16", [](auto* s) { s->mutable_training()->set_precision(v1::PRECISION_BF16); }, true,
       true, true},
      {"length", [](auto* s) { s->mutable_training()->set_sequence_length(16); }, true, true, true},
      {"sequences", [](auto* s) { s->mutable_training()->set_batch_size(16); }, true, true, true},
  };
  const std::vector<DistinctLayer> before = Distinct(Gpt2());
  for (const Case& c : cases) {
    v1::JobSpec spec = Gpt2();
    c.change(&spec);
    const std::vector<DistinctLayer> after = Distinct(spec);
    EXPECT_EQ(before[0].signature != after[0].signature, c.embedding) << c.what;
    EXPECT_EQ(before[1].signature != after[1].signature, c.block) << c.what;
    EXPECT_EQ(before[2].signature != after[2].signature, c.head) << c.what;
  }
}

TEST(LayerCostTest, FamiliesDoNotShareSignatures) {
  v1::JobSpec spec = Gpt2();
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(family: MODEL_FAMILY_LLAMA
           vocab_size: 256
           num_hidden_layers: 6
           hidden_size: 64
           num_attention_heads: 4
           intermediate_size: 256
           max_position_embeddings: 64)pb",
      spec.mutable_model()));
  const std::vector<DistinctLayer> llama = Distinct(spec), gpt2 = Distinct(Gpt2());
  for (int i = 0; i < 3; ++i) EXPECT_NE(llama[i].signature, gpt2[i].signature);
}

TEST(LayerCostTest, AWrongModelIsAnError) {
  v1::JobSpec spec = Gpt2();
  spec.mutable_model()->clear_n_head();
  EXPECT_EQ(DistinctLayers(spec).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headrace
