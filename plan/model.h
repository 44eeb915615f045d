// A model as the planner and the worker see it: one form for both families, defaults filled in.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "headrace/v1/job.pb.h"

namespace headrace {

enum class ModelFamily { kGpt2, kLlama };

struct Model {
  ModelFamily family = ModelFamily::kGpt2;
  int64_t layers = 0;      // transformer blocks
  int64_t width = 0;       // d
  int64_t heads = 0;       // query heads
  int64_t kv_heads = 0;    // key and value heads; equals heads for gpt2
  int64_t head_size = 0;   // width / heads
  int64_t mlp_width = 0;   // gpt2: n_inner; llama: intermediate_size
  int64_t context = 0;     // longest sequence
  int64_t vocabulary = 0;  // V
  bool tied = false;       // head weight = token embedding
  double embedding_dropout = 0;
  double attention_dropout = 0;
  double residual_dropout = 0;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  double init_std = 0.02;
};

// INVALID_ARGUMENT names the key, its value and what was expected: a missing or out-of-range size, a
// key of the other family, width not divisible by heads, heads not by kv_heads, an odd head size with
// rotary positions, a size so large that a layer's byte count would not fit int64.
absl::StatusOr<Model> ResolveModel(const v1::ModelSpec& spec);

}  // namespace headrace
