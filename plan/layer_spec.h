// What each layer is made of: parameters, what it saves for backward, workspace, FLOPs
// (GPipe §2.1: f_i, w_i, c_i). Pure arithmetic. This is the one place where sizes come from: layers
// allocate what stands here, the planner predicts what stands here, so the two cannot differ.
//
// A model of n blocks has L = n + 2 layers:
//   0        embedding   token ids [tokens] → [tokens, width]
//   1 … n    block       [tokens, width] → [tokens, width]
//   n + 1    head        final norm, output projection, softmax-cross-entropy: [tokens, width] →
//            loss
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/alignment.h"
#include "plan/device_kind.h"
#include "plan/model.h"
#include "plan/precision.h"

namespace headrace {

enum class LayerKind { kEmbedding, kGpt2Block, kLlamaBlock, kHead };

enum class Init { kNormal, kZero, kOne };

struct ParameterSpec {
  std::string name;            // Hugging Face's: "transformer.h.0.attn.c_attn.weight"
  std::vector<int64_t> shape;  // matrices are [out, in]
  Init init = Init::kZero;
  double init_std = 0;  // kNormal
  // Lies right behind the parameter before it, in one tensor, unaligned: the rows of q_proj, k_proj
  // and v_proj are one matrix, and so are those of gate_proj and up_proj: one product serves all.
  bool joins_previous = false;
  std::string owner = {};  // of a borrowed one: the name its owner has, and a checkpoint knows

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

// Rows of logits the head has at once: the logits of a whole micro-batch never exist. On a CUDA
// device more of them, for each block of rows reads and writes the whole gradient of its matrix.
inline constexpr int64_t kHeadRows = 256, kCudaHeadRows = 2048;
// Queries of which a thread has attention probabilities at once, and the most keys of one tile of
// its products.
inline constexpr int64_t kAttentionQueries = 32;
inline constexpr int64_t kAttentionTileKeys = 14;

// One micro-batch: `sequences` rows of `length` tokens.
struct MicroBatchShape {
  int64_t sequences = 0;
  int64_t length = 0;
  int64_t tokens() const { return sequences * length; }
};

// How a stage's device keeps numbers, as far as sizes depend on it.
struct Layout {
  int64_t activation_bytes = 4;  // of one element of activations and their gradients
  // Beside the fp32 of each parameter but the embedding's a copy rounded to bfloat16, as products
  // read it; of a tie the head has one.
  bool rounded_weights = false;
  int64_t head_rows = kHeadRows;
  // That take attention scratch of the workspace. A CUDA device's ops take none; what is counted
  // for one thread is little beside the rest.
  int threads = 1;
};
Layout LayoutOn(DeviceKind device, Precision precision, int threads);

struct LayerSpec {
  int64_t index = 0;
  LayerKind kind = LayerKind::kEmbedding;
  std::string name;                       // "embedding", "block 3", "head"
  std::vector<ParameterSpec> parameters;  // own ones. Tied head: its weight is not among them.
  // Tied head only: the copy of the embedding's weight it computes with, and its share of that
  // weight's gradient. Counted as weights and gradients (but see BorrowsFromOwnStage), never in the
  // optimizer, the norm or a checkpoint: layer 0 owns the tie.
  std::vector<ParameterSpec> borrowed;

  int64_t parameter_elements() const;  // of own ones
};

// All L layers in order.
std::vector<LayerSpec> BuildLayers(const Model& model);

// True if a stage of these layers holds both ends of a tie. The head then reads the embedding's
// weight where it lies, so no copy is counted or carved. Its share of the gradient is still a
// tensor of its own, for g = g_embedding + g_head is then the same sum for every K.
bool BorrowsFromOwnStage(const std::vector<LayerSpec>& stage_layers);

// What a stage of these layers carves, in bytes.
//   weights    each parameter rounded up to kAlignment (joined ones together), borrowed copies,
//              with Llama blocks one pair of rotary tables [context, head_size / 2] a stage, and
//              the copies of Layout::rounded_weights
//   gradients  own and borrowed parameters, rounded up likewise
int64_t WeightBytes(const Model& model, const std::vector<LayerSpec>& stage_layers,
                    const Layout& on = {});
int64_t GradientBytes(const std::vector<LayerSpec>& stage_layers);
int64_t RopeTableBytes(const Model& model);  // of one table, of cosines or of sines
// The optimizer's: `moments` fp32 values for each element of own parameters, each parameter's
// moment one tensor rounded up to kAlignment.
int64_t OptimizerBytes(const std::vector<LayerSpec>& stage_layers, int64_t moments);

// What Forward keeps for Backward beside the layer's input and output, in the order layers use.
// Dropout masks are drawn again, not kept; so is the MLP's activation, an element-wise pass over
// the widest tensor of a block (GPT-2: 4 of 15 widths) that costs little beside the products around
// it. The head keeps nothing: norm and logits are formed in backward, where loss and gradient come
// in one go.
std::vector<SavedSpec> SavedTensors(const Model& model, const LayerSpec& layer,
                                    const MicroBatchShape& shape, const Layout& on = {});
int64_t SavedBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape,
                   const Layout& on = {});

// Bytes a layer's input and output take (aligned). The head's output is 0: the loss is a scalar.
int64_t InputBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape,
                   const Layout& on = {});
int64_t OutputBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape,
                    const Layout& on = {});

// Temporaries inside one call.
int64_t ForwardWorkspaceBytes(const Model& model, const LayerSpec& layer,
                              const MicroBatchShape& shape, const Layout& on = {});
int64_t BackwardWorkspaceBytes(const Model& model, const LayerSpec& layer,
                               const MicroBatchShape& shape, const Layout& on = {});
// Attention's share of both, per thread: one head's keys and values packed for its products (whole
// tiles of keys) and its keys or values once more as they are, scores, their gradients and masks of
// kAttentionQueries queries, and five panels of their vectors of `size`. The backend's
// AttentionWorkspaceBytes (worker/backend/ops.h) is this, by a test. `size` counts as at least 4.
int64_t AttentionScratchBytes(int64_t length, int64_t size, int threads);

// What a stage carves as workspace, all of its layers served by one region in turn: two outputs and
// one layer's saved tensors (where some forward keeps nothing), or two gradients (backward), with
// the largest layer's temporaries: whichever is more.
int64_t StageWorkspaceBytes(const Model& model, const std::vector<LayerSpec>& stage_layers,
                            const MicroBatchShape& shape, const Layout& on, bool training,
                            bool keeps_nothing = true);

// Floating-point operations of one micro-batch (a multiply-add counts 2): matrix products,
// attention under its causal mask, and a few per element for what is element-wise. The head does
// all of its work in backward, three products: forward and recompute cost nothing.
double ForwardFlops(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape);
double RecomputeFlops(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape);
double BackwardFlops(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape);

}  // namespace headrace
