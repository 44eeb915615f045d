// What each layer is made of: parameters, what it saves for backward, workspace, FLOPs
// (GPipe §2.1: f_i, w_i, c_i). Pure arithmetic. This is the one place where sizes come from: layers
// allocate what stands here, the planner predicts what stands here, so the two cannot differ.
//
// A model of n blocks has L = n + 2 layers:
//   0        embedding   token ids [tokens] → [tokens, width]
//   1 … n    block       [tokens, width] → [tokens, width]
//   n + 1    head        final norm, output projection, softmax-cross-entropy: [tokens, width] → loss
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/alignment.h"
#include "plan/model.h"

namespace headrace {

enum class LayerKind { kEmbedding, kGpt2Block, kLlamaBlock, kHead };

enum class Init { kNormal, kZero, kOne };

struct ParameterSpec {
  std::string name;  // Hugging Face's: "transformer.h.0.attn.c_attn.weight", "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;  // matrices are [out, in]
  Init init = Init::kZero;
  double init_std = 0;  // kNormal

  int64_t elements() const;
  int64_t bytes() const { return 4 * elements(); }  // fp32
};

// A tensor a layer keeps from forward to backward, for one micro-batch.
struct SavedSpec {
  std::string name;
  std::vector<int64_t> shape;
  int64_t bytes = 0;  // rounded up to kAlignment
};

int64_t AlignUp(int64_t bytes);

// One micro-batch: `sequences` rows of `length` tokens.
struct MicroBatchShape {
  int64_t sequences = 0;
  int64_t length = 0;
  int64_t tokens() const { return sequences * length; }
};

struct LayerSpec {
  int64_t index = 0;
  LayerKind kind = LayerKind::kEmbedding;
  std::string name;  // "embedding", "block 3", "head"
  std::vector<ParameterSpec> parameters;  // own ones. Tied head: its weight is not among them.
  // Tied head only: the copy of the embedding's weight it computes with. Counted as weights and
  // gradients, never in the optimizer, the norm or a checkpoint: layer 0 owns the tie.
  std::vector<ParameterSpec> borrowed;
};

// All L layers in order.
std::vector<LayerSpec> BuildLayers(const Model& model);

// What Forward keeps for Backward beside the layer's input and output, in the order layers use.
std::vector<SavedSpec> SavedTensors(const Model& model, const LayerSpec& layer,
                                    const MicroBatchShape& shape);
int64_t SavedBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape);

// Bytes a layer's input and output take (aligned). The head's output is 0: the loss is a scalar.
int64_t InputBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape);
int64_t OutputBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape);

// Temporaries inside one call, for `threads` threads.
int64_t ForwardWorkspaceBytes(const Model& model, const LayerSpec& layer,
                              const MicroBatchShape& shape, int threads);
int64_t BackwardWorkspaceBytes(const Model& model, const LayerSpec& layer,
                               const MicroBatchShape& shape, int threads);

// Floating-point operations of one micro-batch (a multiply-add counts 2).
double ForwardFlops(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape);
double RecomputeFlops(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape);
double BackwardFlops(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape);

}  // namespace headrace
