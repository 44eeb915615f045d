#include "plan/model.h"

#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::ModelSpec Gpt2() {
  v1::ModelSpec spec;
  spec.set_family(v1::MODEL_FAMILY_GPT2);
  spec.set_vocab_size(50257);
  spec.set_n_layer(12);
  spec.set_n_embd(768);
  spec.set_n_head(12);
  spec.set_n_positions(1024);
  return spec;
}

v1::ModelSpec Llama() {
  v1::ModelSpec spec;
  spec.set_family(v1::MODEL_FAMILY_LLAMA);
  spec.set_vocab_size(32000);
  spec.set_num_hidden_layers(22);
  spec.set_hidden_size(2048);
  spec.set_num_attention_heads(32);
  spec.set_num_key_value_heads(4);
  spec.set_intermediate_size(5632);
  spec.set_max_position_embeddings(2048);
  return spec;
}

TEST(ResolveModel, FillsInTheDefaultsOfGpt2) {
  const Model m = ResolveModel(Gpt2()).value();
  EXPECT_EQ(m.family, ModelFamily::kGpt2);
  EXPECT_EQ(m.layers, 12);
  EXPECT_EQ(m.kv_heads, 12);
  EXPECT_EQ(m.head_size, 64);
  EXPECT_EQ(m.mlp_width, 3072);
  EXPECT_TRUE(m.tied);
  EXPECT_EQ(m.norm_epsilon, 1e-5);
  EXPECT_EQ(m.init_std, 0.02);
  EXPECT_EQ(m.embedding_dropout, 0);
}

TEST(ResolveModel, FillsInTheDefaultsOfLlama) {
  v1::ModelSpec spec = Llama();
  spec.clear_num_key_value_heads();
  const Model m = ResolveModel(spec).value();
  EXPECT_EQ(m.family, ModelFamily::kLlama);
  EXPECT_EQ(m.kv_heads, 32);
  EXPECT_EQ(m.head_size, 64);
  EXPECT_FALSE(m.tied);
  EXPECT_EQ(m.rope_theta, 10000);
}

struct BadCase {
  const char* name;
  v1::ModelSpec base;
  std::function<void(v1::ModelSpec*)> change;
  const char* key;       // what the message starts with
  const char* contains;  // what else it says
};

TEST(ResolveModel, NamesTheKeyItsValueAndWhatWasExpected) {
  const BadCase cases[] = {
      {"no family", Gpt2(), [](auto* s) { s->clear_family(); }, "model.family: missing", "llama"},
      {"unknown family", Gpt2(), [](auto* s) { s->set_family(static_cast<v1::ModelFamily>(9)); },
       "model.family: ", "gpt2"},
      {"no layers key", Gpt2(), [](auto* s) { s->clear_n_layer(); }, "model.n_layer: missing",
       "1 to 100000"},
      {"0 layers", Gpt2(), [](auto* s) { s->set_n_layer(0); }, "model.n_layer: 0;", "1 to 100000"},
      {"10^12 layers", Gpt2(), [](auto* s) { s->set_n_layer(1'000'000'000'000); },
       "model.n_layer: 1000000000000;", "1 to 100000"},
      {"10^12 llama layers", Llama(), [](auto* s) { s->set_num_hidden_layers(1'000'000'000'000); },
       "model.num_hidden_layers: ", "1 to 100000"},
      {"negative width", Gpt2(), [](auto* s) { s->set_n_embd(-768); }, "model.n_embd: -768;",
       "1 to"},
      {"a width whose bytes overflow", Gpt2(), [](auto* s) { s->set_n_embd(int64_t{1} << 61); },
       "model.n_embd: ", "1 to"},
      {"width not divisible", Gpt2(), [](auto* s) { s->set_n_head(7); }, "model.n_embd: 768;",
       "multiple of n_head (7)"},
      {"vocabulary beyond int32", Gpt2(), [](auto* s) { s->set_vocab_size(int64_t{1} << 31); },
       "model.vocab_size: 2147483648;", "1 to 2147483647"},
      {"no vocabulary", Llama(), [](auto* s) { s->clear_vocab_size(); },
       "model.vocab_size: missing", "1 to"},
      {"no context", Gpt2(), [](auto* s) { s->clear_n_positions(); }, "model.n_positions: missing",
       "1 to"},
      {"dropout of 1", Gpt2(), [](auto* s) { s->set_resid_pdrop(1); }, "model.resid_pdrop: 1;",
       "from 0"},
      {"NaN dropout", Gpt2(),
       [](auto* s) { s->set_attn_pdrop(std::numeric_limits<double>::quiet_NaN()); },
       "model.attn_pdrop: nan;", "from 0"},
      {"negative embedding dropout", Gpt2(), [](auto* s) { s->set_embd_pdrop(-0.1); },
       "model.embd_pdrop: -0.1;", "from 0"},
      {"zero epsilon", Gpt2(), [](auto* s) { s->set_layer_norm_epsilon(0); },
       "model.layer_norm_epsilon: 0;", "above 0"},
      {"infinite init", Gpt2(),
       [](auto* s) { s->set_initializer_range(std::numeric_limits<double>::infinity()); },
       "model.initializer_range: inf;", "finite"},
      {"gpt2 with a llama key", Gpt2(), [](auto* s) { s->set_hidden_size(768); },
       "model.hidden_size: ", "n_embd"},
      {"llama with a gpt2 key", Llama(), [](auto* s) { s->set_n_inner(768); },
       "model.n_inner: ", "hidden_size"},
      {"kv heads", Llama(), [](auto* s) { s->set_num_key_value_heads(5); },
       "model.num_attention_heads: 32;", "multiple of num_key_value_heads (5)"},
      {"odd head size", Llama(), [](auto* s) { s->set_hidden_size(96); }, "model.hidden_size: 96;",
       "even head size"},
      {"no intermediate size", Llama(), [](auto* s) { s->clear_intermediate_size(); },
       "model.intermediate_size: missing", "1 to"},
      {"negative theta", Llama(), [](auto* s) { s->set_rope_theta(-1); }, "model.rope_theta: -1;",
       "above 0"},
  };
  for (const BadCase& c : cases) {
    v1::ModelSpec spec = c.base;
    c.change(&spec);
    const auto model = ResolveModel(spec);
    ASSERT_FALSE(model.ok()) << c.name;
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(model.status().message()), StartsWith(c.key)) << c.name;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(c.contains)) << c.name;
  }
}

}  // namespace
}  // namespace headrace
