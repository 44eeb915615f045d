// A GPT-2 block (Radford et al. 2019), pre-norm:
//
//   r = x + dropout(attention(layer_norm(x) · c_attnᵀ) · c_projᵀ)
//   y = r + dropout(gelu(layer_norm(r) · c_fcᵀ) · c_projᵀ)
#include <utility>

#include "worker/layers/layer.h"

namespace headrace {
namespace {

enum WeightIndex {
  kNorm1Gain,
  kNorm1Bias,
  kQkv,
  kQkvBias,
  kProjection,
  kProjectionBias,
  kNorm2Gain,
  kNorm2Bias,
  kExpand,
  kExpandBias,
  kContract,
  kContractBias
};

// The views into `saved`, in the order of SavedTensors.
struct Saved {
  Saved(const Model& m, const LayerCall& call, const void* region) {
    const int64_t n = call.mb.shape.tokens();
    Carver carver = call.Carve(region);
    mean1 = carver.Floats(n);
    rstd1 = carver.Floats(n);
    norm1 = carver.Acts(n * m.width);
    qkv = carver.Acts(n * 3 * m.width);
    attention = carver.Acts(n * m.width);
    lse = carver.Floats(n * m.heads);
    residual = carver.Acts(n * m.width);
    mean2 = carver.Floats(n);
    rstd2 = carver.Floats(n);
    norm2 = carver.Acts(n * m.width);
    expanded = carver.Acts(n * m.mlp_width);
  }

  float *mean1, *rstd1, *lse, *mean2, *rstd2;
  Act norm1, qkv, attention, residual, norm2, expanded;
};

class Gpt2Block : public Layer {
 public:
  using Layer::Layer;

  void Forward(const LayerCall& call, const void* x, Act y, void* saved) override {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, m = model_.mlp_width;
    const Saved s(model_, call, saved);
    const ConstAct in = call.Hidden(x);
    Ops& ops = *call.ops;

    ops.LayerNorm(in, weight(kNorm1Gain).value, weight(kNorm1Bias).value, s.norm1, s.mean1, s.rstd1,
                  n, d, epsilon());
    ops.Linear(s.norm1, weight(kQkv), weight(kQkvBias), s.qkv, n, d, 3 * d);
    ops.Attention(s.qkv, s.attention, s.lse, Attention(call.mb),
                  static_cast<float*>(call.workspace));
    ForwardResidual(call, in, s);
    if (y == nullptr) {
      ops.Linear(s.norm2, weight(kExpand), weight(kExpandBias), s.expanded, n, d, m);
      return;
    }
    const Act activated = call.Carve(call.workspace).Acts(n * m);
    ops.LinearGelu(s.norm2, weight(kExpand), weight(kExpandBias), s.expanded, activated, n, d, m);
    if (!Drops(call, model_.residual_dropout)) {
      return ops.LinearAdd(activated, weight(kContract), weight(kContractBias), s.residual, y, n, m,
                           d);
    }
    ops.Linear(activated, weight(kContract), weight(kContractBias), y, n, m, d);
    Drop(call, DropoutSite::kMlp, model_.residual_dropout, y, y);
    ops.Add(s.residual, y, y, n * d);
  }

  void Backward(const LayerCall& call, const void* x, const void* saved, ConstAct dy,
                Act dx) override {
    const int64_t n = call.mb.shape.tokens(), d = model_.width;
    const Saved s(model_, call, saved);
    Carver carver = call.Carve(call.workspace);
    const Act narrow1 = carver.Acts(n * d);
    const Act narrow2 = carver.Acts(n * d);
    BackwardMlp(call, s, dy, dx, narrow1, carver);
    BackwardAttention(call, s, call.Hidden(x), dx, narrow1, narrow2, carver);
  }

 private:
  float epsilon() const { return static_cast<float>(model_.norm_epsilon); }

  // r = x + the attention's branch, and its norm.
  void ForwardResidual(const LayerCall& call, ConstAct x, const Saved& s) {
    const int64_t n = call.mb.shape.tokens(), d = model_.width;
    const float *gain = weight(kNorm2Gain).value, *bias = weight(kNorm2Bias).value;
    Ops& ops = *call.ops;
    if (!Drops(call, model_.residual_dropout)) {
      ops.LinearAdd(s.attention, weight(kProjection), weight(kProjectionBias), x, s.residual, n, d,
                    d);
      return ops.LayerNorm(s.residual, gain, bias, s.norm2, s.mean2, s.rstd2, n, d, epsilon());
    }
    ops.Linear(s.attention, weight(kProjection), weight(kProjectionBias), s.residual, n, d, d);
    Drop(call, DropoutSite::kProjection, model_.residual_dropout, s.residual, s.residual);
    ops.AddLayerNorm(x, s.residual, s.residual, gain, bias, s.norm2, s.mean2, s.rstd2, n, d,
                     epsilon());
  }

  void LinearBackwardWeight(Ops& ops, int matrix, ConstAct dy, ConstAct x, int64_t n, int64_t in,
                            int64_t out) {
    ops.LinearBackwardWeight(dy, x, weight(matrix).gradient, weight(matrix + 1).gradient, n, in,
                             out);
  }

  // dr = dy + (the second branch's gradient), into `dr`.
  void BackwardMlp(const LayerCall& call, const Saved& s, ConstAct dy, Act dr, Act narrow,
                   Carver carver) {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, m = model_.mlp_width;
    Ops& ops = *call.ops;
    const Act wide = carver.Acts(n * m);  // the activation, then the gradient of its input
    const ConstAct branch = Drop(call, DropoutSite::kMlp, model_.residual_dropout, dy, narrow);
    ops.Gelu(s.expanded, wide, n * m);
    LinearBackwardWeight(ops, kContract, branch, wide, n, m, d);
    ops.LinearGeluBackwardInput(branch, weight(kContract), s.expanded, wide, n, m, d);
    LinearBackwardWeight(ops, kExpand, wide, s.norm2, n, d, m);
    ops.LinearBackwardInput(wide, weight(kExpand), narrow, n, d, m, false);
    ops.LayerNormBackward(narrow, s.residual, weight(kNorm2Gain).value, s.mean2, s.rstd2, dy, dr,
                          weight(kNorm2Gain).gradient, weight(kNorm2Bias).gradient, n, d);
  }

  // dx = dr + (the first branch's gradient), in place.
  void BackwardAttention(const LayerCall& call, const Saved& s, ConstAct x, Act dx, Act narrow1,
                         Act narrow2, Carver carver) {
    const int64_t n = call.mb.shape.tokens(), d = model_.width;
    Ops& ops = *call.ops;
    const Act dqkv = carver.Acts(n * 3 * d);
    float* scratch = static_cast<float*>(carver.Bytes(0));
    const ConstAct branch =
        Drop(call, DropoutSite::kProjection, model_.residual_dropout, dx, narrow1);
    LinearBackwardWeight(ops, kProjection, branch, s.attention, n, d, d);
    ops.LinearBackwardInput(branch, weight(kProjection), narrow2, n, d, d, false);
    ops.AttentionBackward(narrow2, s.qkv, s.attention, s.lse, dqkv, Attention(call.mb), scratch);
    LinearBackwardWeight(ops, kQkv, dqkv, s.norm1, n, d, 3 * d);
    ops.LinearBackwardInput(dqkv, weight(kQkv), narrow1, n, d, 3 * d, false);
    ops.LayerNormBackward(narrow1, x, weight(kNorm1Gain).value, s.mean1, s.rstd1, dx, dx,
                          weight(kNorm1Gain).gradient, weight(kNorm1Bias).gradient, n, d);
  }
};

}  // namespace

std::unique_ptr<Layer> CreateGpt2Block(const Model& model, const LayerSpec& spec,
                                       std::vector<Weight> weights) {
  return std::make_unique<Gpt2Block>(model, spec, std::move(weights));
}

}  // namespace headrace
