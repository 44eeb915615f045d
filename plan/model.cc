#include "plan/model.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

// Field numbers of ModelSpec: the first of each family's block (proto/headrace/v1/job.proto).
constexpr int kFirstGpt2Field = 10;
constexpr int kFirstLlamaField = 30;

// With these, the bytes of any layer, and of all of them together, fit int64 with room to spare.
constexpr int64_t kMaxLayers = 100'000;
constexpr int64_t kMaxWidth = 1 << 17;
constexpr int64_t kMaxMlpWidth = 1 << 19;
constexpr int64_t kMaxContext = 1 << 24;
constexpr int64_t kMaxVocabulary = std::numeric_limits<int32_t>::max();  // token ids are int32

absl::Status Bad(const std::string& key, const std::string& value, const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("model.", key, ": ", value, "; expected ", expected));
}

absl::StatusOr<int64_t> Size(const std::string& key, std::optional<int64_t> value, int64_t max) {
  const std::string expected = absl::StrCat("a whole number from 1 to ", max);
  if (!value) return Bad(key, "missing", expected);
  if (*value < 1 || *value > max) return Bad(key, absl::StrCat(*value), expected);
  return *value;
}

absl::Status CheckProbability(const std::string& key, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return Bad(key, absl::StrCat(value), "a number from 0 up to, not including, 1");
}

absl::Status CheckPositive(const std::string& key, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return Bad(key, absl::StrCat(value), "a finite number above 0");
}

// Every key of the other family that is set is an error: it would be ignored in silence.
absl::Status CheckFamilyKeys(const v1::ModelSpec& spec, bool gpt2) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  spec.GetReflection()->ListFields(spec, &fields);
  for (const auto* field : fields) {
    if (field->number() < kFirstGpt2Field) continue;
    if ((field->number() < kFirstLlamaField) == gpt2) continue;
    return Bad(field->name(), "not a key of this family",
               gpt2 ? "a key of gpt2 (n_layer, n_embd, …), or family: llama"
                    : "a key of llama (num_hidden_layers, hidden_size, …), or family: gpt2");
  }
  return absl::OkStatus();
}

#define HEADRACE_OPTIONAL(field) \
  (spec.has_##field() ? std::optional<int64_t>(spec.field()) : std::nullopt)

absl::Status ReadGpt2(const v1::ModelSpec& spec, Model* model) {
  HEADRACE_ASSIGN_OR_RETURN(model->layers, Size("n_layer", HEADRACE_OPTIONAL(n_layer), kMaxLayers));
  HEADRACE_ASSIGN_OR_RETURN(model->width, Size("n_embd", HEADRACE_OPTIONAL(n_embd), kMaxWidth));
  HEADRACE_ASSIGN_OR_RETURN(model->heads, Size("n_head", HEADRACE_OPTIONAL(n_head), kMaxWidth));
  HEADRACE_ASSIGN_OR_RETURN(
      model->mlp_width,
      Size("n_inner", spec.has_n_inner() ? spec.n_inner() : 4 * model->width, kMaxMlpWidth));
  HEADRACE_ASSIGN_OR_RETURN(model->context,
                            Size("n_positions", HEADRACE_OPTIONAL(n_positions), kMaxContext));
  model->kv_heads = model->heads;
  model->tied = spec.has_tie_word_embeddings() ? spec.tie_word_embeddings() : true;
  if (spec.has_layer_norm_epsilon()) model->norm_epsilon = spec.layer_norm_epsilon();
  model->embedding_dropout = spec.embd_pdrop();
  model->residual_dropout = spec.resid_pdrop();
  model->attention_dropout = spec.attn_pdrop();
  HEADRACE_RETURN_IF_ERROR(CheckPositive("layer_norm_epsilon", model->norm_epsilon));
  HEADRACE_RETURN_IF_ERROR(CheckProbability("embd_pdrop", model->embedding_dropout));
  HEADRACE_RETURN_IF_ERROR(CheckProbability("resid_pdrop", model->residual_dropout));
  HEADRACE_RETURN_IF_ERROR(CheckProbability("attn_pdrop", model->attention_dropout));
  if (model->width % model->heads != 0) {
    return Bad("n_embd", absl::StrCat(model->width),
               absl::StrCat("a multiple of n_head (", model->heads, ")"));
  }
  return absl::OkStatus();
}

absl::Status ReadLlama(const v1::ModelSpec& spec, Model* model) {
  HEADRACE_ASSIGN_OR_RETURN(
      model->layers, Size("num_hidden_layers", HEADRACE_OPTIONAL(num_hidden_layers), kMaxLayers));
  HEADRACE_ASSIGN_OR_RETURN(model->width,
                            Size("hidden_size", HEADRACE_OPTIONAL(hidden_size), kMaxWidth));
  HEADRACE_ASSIGN_OR_RETURN(
      model->heads, Size("num_attention_heads", HEADRACE_OPTIONAL(num_attention_heads), kMaxWidth));
  HEADRACE_ASSIGN_OR_RETURN(
      model->kv_heads,
      Size("num_key_value_heads",
           spec.has_num_key_value_heads() ? spec.num_key_value_heads() : model->heads, kMaxWidth));
  HEADRACE_ASSIGN_OR_RETURN(
      model->mlp_width,
      Size("intermediate_size", HEADRACE_OPTIONAL(intermediate_size), kMaxMlpWidth));
  HEADRACE_ASSIGN_OR_RETURN(
      model->context,
      Size("max_position_embeddings", HEADRACE_OPTIONAL(max_position_embeddings), kMaxContext));
  model->tied = spec.tie_word_embeddings();
  if (spec.has_rms_norm_eps()) model->norm_epsilon = spec.rms_norm_eps();
  if (spec.has_rope_theta()) model->rope_theta = spec.rope_theta();
  model->attention_dropout = spec.attention_dropout();
  HEADRACE_RETURN_IF_ERROR(CheckPositive("rms_norm_eps", model->norm_epsilon));
  HEADRACE_RETURN_IF_ERROR(CheckPositive("rope_theta", model->rope_theta));
  HEADRACE_RETURN_IF_ERROR(CheckProbability("attention_dropout", model->attention_dropout));
  if (model->width % model->heads != 0) {
    return Bad("hidden_size", absl::StrCat(model->width),
               absl::StrCat("a multiple of num_attention_heads (", model->heads, ")"));
  }
  if (model->heads % model->kv_heads != 0) {
    return Bad("num_attention_heads", absl::StrCat(model->heads),
               absl::StrCat("a multiple of num_key_value_heads (", model->kv_heads, ")"));
  }
  if (model->width / model->heads % 2 != 0) {
    return Bad("hidden_size", absl::StrCat(model->width),
               absl::StrCat("an even head size, hidden_size / num_attention_heads is ",
                            model->width / model->heads, ", since rotary positions turn pairs"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Model> ResolveModel(const v1::ModelSpec& spec) {
  Model model;
  if (spec.family() == v1::MODEL_FAMILY_GPT2) {
    model.family = ModelFamily::kGpt2;
  } else if (spec.family() == v1::MODEL_FAMILY_LLAMA) {
    model.family = ModelFamily::kLlama;
  } else {
    return Bad("family", spec.family() == 0 ? "missing" : "unknown", "gpt2 or llama");
  }
  const bool gpt2 = model.family == ModelFamily::kGpt2;
  HEADRACE_RETURN_IF_ERROR(CheckFamilyKeys(spec, gpt2));
  HEADRACE_ASSIGN_OR_RETURN(model.vocabulary,
                            Size("vocab_size", HEADRACE_OPTIONAL(vocab_size), kMaxVocabulary));
  HEADRACE_RETURN_IF_ERROR(gpt2 ? ReadGpt2(spec, &model) : ReadLlama(spec, &model));
  if (spec.has_initializer_range()) model.init_std = spec.initializer_range();
  if (!(model.init_std >= 0 && std::isfinite(model.init_std))) {
    return Bad("initializer_range", absl::StrCat(model.init_std), "a finite number, 0 or more");
  }
  model.head_size = model.width / model.heads;
  return model;
}

#undef HEADRACE_OPTIONAL

}  // namespace headrace
