// Layer 0: token ids to hidden states, with learned positions where the family has them.
#include <utility>

#include "worker/layers/layer.h"

namespace headrace {
namespace {

enum WeightIndex { kTokens, kPositions };

class Embedding : public Layer {
 public:
  using Layer::Layer;

  void Forward(const LayerCall& call, const void* x, Act y, void* /*saved*/) override {
    if (y == nullptr) return;  // nothing is saved
    const MicroBatchShape& s = call.mb.shape;
    call.ops->Embedding(static_cast<const int32_t*>(x), weight(kTokens).value,
                        positions() ? weight(kPositions).value : nullptr, y, s.tokens(), s.length,
                        model_.width);
    Drop(call, DropoutSite::kEmbedding, model_.embedding_dropout, y, y);
  }

  void Backward(const LayerCall& call, const void* x, const void* /*saved*/, ConstAct dy,
                Act /*dx*/) override {
    const MicroBatchShape& s = call.mb.shape;
    const Act dropped(call.workspace, call.ops->activation_type());
    const ConstAct gradient =
        Drop(call, DropoutSite::kEmbedding, model_.embedding_dropout, dy, dropped);
    call.ops->EmbeddingBackward(static_cast<const int32_t*>(x), gradient, weight(kTokens).gradient,
                                positions() ? weight(kPositions).gradient : nullptr, s.tokens(),
                                s.length, model_.width);
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
