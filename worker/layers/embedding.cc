// Layer 0: token ids to hidden states, with learned positions where the family has them.
#include <utility>

#include "worker/layers/carver.h"
#include "worker/layers/layer.h"

namespace headrace {
namespace {

enum WeightIndex { kTokens, kPositions };

class Embedding : public Layer {
 public:
  using Layer::Layer;

  double Forward(const LayerCall& call, const void* x, float* y, void* /*saved*/) override {
    if (y == nullptr) return 0;  // nothing is saved
    const MicroBatchShape& s = call.mb.shape;
    call.ops->Embedding(static_cast<const int32_t*>(x), weight(kTokens).value,
                        positions() ? weight(kPositions).value : nullptr, y, s.tokens(), s.length,
                        model_.width);
    Drop(call, DropoutSite::kEmbedding, model_.embedding_dropout, y, y);
    return 0;
  }

  double Backward(const LayerCall& call, const void* x, const void* /*saved*/, const float* dy,
                  float* /*dx*/) override {
    const MicroBatchShape& s = call.mb.shape;
    const float* gradient = Drop(call, DropoutSite::kEmbedding, model_.embedding_dropout, dy,
                                 static_cast<float*>(call.workspace));
    call.ops->EmbeddingBackward(static_cast<const int32_t*>(x), gradient, weight(kTokens).gradient,
                                positions() ? weight(kPositions).gradient : nullptr, s.tokens(),
                                s.length, model_.width);
    return 0;
  }

 private:
  bool positions() const { return model_.family == ModelFamily::kGpt2; }
};

}  // namespace

std::unique_ptr<Layer> CreateEmbedding(const Model& model, const LayerSpec& spec,
                                       std::vector<Weight> weights) {
  return std::make_unique<Embedding>(model, spec, std::move(weights));
}

}  // namespace headrace
