#include "plan/layer_cost.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "plan/batch.h"
#include "plan/model.h"

namespace headrace {
namespace {

std::string LayerText(const Model& model, LayerKind kind) {
  const std::string width = absl::StrCat(", width ", model.width);
  const std::string heads =
      absl::StrCat(width, ", heads ", model.heads, "/", model.kv_heads, ", mlp ", model.mlp_width);
  switch (kind) {
    case LayerKind::kEmbedding:
      return absl::StrCat(model.family == ModelFamily::kGpt2 ? "gpt2" : "llama",
                          " embedding, vocabulary ", model.vocabulary, width, ", dropout ",
                          model.embedding_dropout);
    case LayerKind::kGpt2Block:
      return absl::StrCat("gpt2 block", heads, ", dropout ", model.attention_dropout, "/",
                          model.residual_dropout);
    case LayerKind::kLlamaBlock:
      return absl::StrCat("llama block", heads, ", dropout ", model.attention_dropout);
    case LayerKind::kHead:
      return absl::StrCat(model.family == ModelFamily::kGpt2 ? "gpt2" : "llama",
                          " head, vocabulary ", model.vocabulary, width);
  }
  return "layer";
}

std::string PrecisionText(const v1::TrainingSpec& training) {
  if (training.precision() == v1::PRECISION_UNSPECIFIED ||
      training.precision() == v1::PRECISION_FP32) {
    return training.tf32() ? "fp32 by TF32" : "fp32";
  }
  return training.bf16_emulate() ? "bf16 emulated" : "bf16";
}

}  // namespace

absl::StatusOr<std::vector<DistinctLayer>> DistinctLayers(const v1::JobSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const Model model, ResolveModel(spec.model()));
  const v1::TrainingSpec& training = spec.training();
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> sequences,
                            SplitBatch(training.batch_size(), training.micro_batches()));
  const std::string shape = absl::StrCat(
      " · ", sequences.front(), " × ", training.sequence_length(), " · ", PrecisionText(training));
  const LayerKind block =
      model.family == ModelFamily::kGpt2 ? LayerKind::kGpt2Block : LayerKind::kLlamaBlock;
  std::vector<DistinctLayer> distinct = {
      {LayerKind::kEmbedding, 0, ""}, {block, 1, ""}, {LayerKind::kHead, model.layers + 1, ""}};
  for (DistinctLayer& layer : distinct) layer.signature = LayerText(model, layer.kind) + shape;
  return distinct;
}

const MeasuredCost* FindCost(const std::vector<MeasuredCost>& costs, LayerKind kind) {
  const auto at = std::find_if(costs.begin(), costs.end(),
                               [kind](const MeasuredCost& cost) { return cost.kind == kind; });
  return at == costs.end() ? nullptr : &*at;
}

}  // namespace headrace
