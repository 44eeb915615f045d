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
#include "worker/layers/stage_model.h"

namespace headrace {

// A parameter where the layer finds it.
struct Weight {
  float* value = nullptr;
  float* gradient = nullptr;
};

struct LayerCall {
  const MicroBatch& mb;
  Ops* ops = nullptr;
  void* workspace = nullptr;
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
  // null where nobody needs the output: then only `saved` is filled. Returns the head's summed loss
  // when not training; in training Backward has it.
  virtual double Forward(const LayerCall& call, const void* x, float* y, void* saved) = 0;
  // Repeats Forward bit for bit.
  virtual void Recompute(const LayerCall& call, const void* x, float* y, void* saved) {
    Forward(call, x, y, saved);
  }
  // Adds to parameter gradients and sets `dx` (unused by the embedding). `dy` is null for the head.
  // dx and dy do not overlap. Returns the head's summed loss, 0 for other layers.
  virtual double Backward(const LayerCall& call, const void* x, const void* saved, const float* dy,
                          float* dx) = 0;

 protected:
  // The stream of a mask: a pure function of (seed, step, micro-batch, layer, site).
  RandomStream Mask(const MicroBatch& mb, DropoutSite site) const;
  // Attention of this micro-batch, with its dropout when training.
  AttentionShape Attention(const MicroBatch& mb) const;
  // y = dropout(x) when training with p > 0. Returns where the result is: x or y.
  const float* Drop(const LayerCall& call, DropoutSite site, double p, const float* x,
                    float* y) const;
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
  // Logits [vocabulary] of one hidden state x [width].
  virtual void Logits(const LayerCall& call, const float* x, float* logits) = 0;
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
std::unique_ptr<HeadLayer> CreateHead(const Model& model, const LayerSpec& spec,
                                      std::vector<Weight> weights);

}  // namespace headrace
