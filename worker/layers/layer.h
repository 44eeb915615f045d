// One layer of a model: its forward beside its backward, written once against Ops.
//
// A layer owns nothing. Parameters, saved tensors and temporaries lie in memory it is given, laid
// out as plan/layer_spec.h lists them. It keeps no state between calls, so a micro-batch may go
// forward, be recomputed and go backward with others in between.
//   saved      SavedBytes of the layer, in the order of SavedTensors; written by Forward and
//              Recompute, read by Backward
//   workspace  ForwardWorkspaceBytes or BackwardWorkspaceBytes; means nothing between calls
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "plan/layer_spec.h"
#include "worker/backend/ops.h"
#include "worker/layers/carver.h"
#include "worker/layers/stage_model.h"

namespace headrace {

// A parameter where the layer finds it.
struct Weight {
  float* value = nullptr;
  float* gradient = nullptr;
  uint16_t* rounded = nullptr;  // the value in bfloat16, where the stage keeps it so

  operator ConstWeight() const { return {value, rounded}; }  // NOLINT: as products take it
};

struct LayerCall {
  const MicroBatch& mb;
  Ops* ops = nullptr;
  void* workspace = nullptr;

  ConstAct Hidden(const void* x) const { return {x, ops->activation_type()}; }
  Carver Carve(const void* region) const { return {region, ops->activation_type()}; }
};

// Where in a layer a dropout mask falls: the last word of its random stream.
enum class DropoutSite : uint32_t { kEmbedding = 0, kAttention = 1, kProjection = 2, kMlp = 3 };
inline constexpr uint32_t kDropoutSites = 8;  // streams set aside for each layer

class Layer {
 public:
  // `weights`: in the order of LayerSpec::parameters, a borrowed one last.
  Layer(const Model& model, const LayerSpec& spec, std::vector<Weight> weights)
      : model_(model), index_(spec.index), weights_(std::move(weights)) {}
  virtual ~Layer() = default;

  // `x`: the input, token ids [tokens] or hidden states [tokens, width]. `y`: [tokens, width], or
  // null where nobody needs the output: then only `saved` is filled. The head adds its summed loss
  // to mb.loss when not training; in training Backward does.
  virtual void Forward(const LayerCall& call, const void* x, Act y, void* saved) = 0;
  // Repeats Forward bit for bit.
  virtual void Recompute(const LayerCall& call, const void* x, Act y, void* saved) {
    Forward(call, x, y, saved);
  }
  // Adds to parameter gradients and sets `dx` (unused by the embedding). `dy` is null for the head.
  // dx and dy do not overlap. The head adds its summed loss to mb.loss.
  virtual void Backward(const LayerCall& call, const void* x, const void* saved, ConstAct dy,
                        Act dx) = 0;

 protected:
  // The stream of a mask: a pure function of (seed, step, micro-batch, layer, site).
  RandomStream Mask(const MicroBatch& mb, DropoutSite site) const;
  // Attention of this micro-batch, with its dropout when training.
  AttentionShape Attention(const MicroBatch& mb) const;
  static bool Drops(const LayerCall& call, double p) { return call.mb.training && p > 0; }
  // y = dropout(x) where it Drops. Returns where the result is: x or y.
  ConstAct Drop(const LayerCall& call, DropoutSite site, double p, ConstAct x, Act y) const;
  const Weight& weight(int i) const { return weights_[static_cast<size_t>(i)]; }

  const Model model_;
  const int64_t index_;

 private:
  const std::vector<Weight> weights_;
};

// The last layer of a model.
class HeadLayer : public Layer {
 public:
  using Layer::Layer;
  // Logits [vocabulary] of one hidden state x [width], in fp32.
  virtual void Logits(const LayerCall& call, ConstAct x, float* logits) = 0;
};

// Rotary tables [context, head_size / 2], shared by the blocks of a stage.
struct RopeTables {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

std::unique_ptr<Layer> CreateEmbedding(const Model& model, const LayerSpec& spec,
                                       std::vector<Weight> weights);
std::unique_ptr<Layer> CreateGpt2Block(const Model& model, const LayerSpec& spec,
                                       std::vector<Weight> weights);
std::unique_ptr<Layer> CreateLlamaBlock(const Model& model, const LayerSpec& spec,
                                        std::vector<Weight> weights, RopeTables rope);
// `head_rows`: of logits at once (Layout).
std::unique_ptr<HeadLayer> CreateHead(const Model& model, const LayerSpec& spec,
                                      std::vector<Weight> weights, int64_t head_rows);

}  // namespace headrace
