// A GPT-2 block (Radford et al. 2019), pre-norm:
//
//   r = x + dropout(attention(layer_norm(x) · c_attnᵀ) · c_projᵀ)
//   y = r + dropout(gelu(layer_norm(r) · c_fcᵀ) · c_projᵀ)
#include <utility>

#include "worker/layers/carver.h"
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
  Saved(const Model& m, const MicroBatchShape& s, const void* region) {
    const int64_t n = s.tokens();
    Carver carver(region);
    mean1 = carver.Floats(n);
    rstd1 = carver.Floats(n);
    norm1 = carver.Floats(n * m.width);
    qkv = carver.Floats(n * 3 * m.width);
    attention = carver.Floats(n * m.width);
    lse = carver.Floats(n * m.heads);
    residual = carver.Floats(n * m.width);
    mean2 = carver.Floats(n);
    rstd2 = carver.Floats(n);
    norm2 = carver.Floats(n * m.width);
    expanded = carver.Floats(n * m.mlp_width);
  }

  float *mean1, *rstd1, *norm1, *qkv, *attention, *lse, *residual, *mean2, *rstd2, *norm2,
      *expanded;
};

class Gpt2Block : public Layer {
 public:
  using Layer::Layer;

  double Forward(const LayerCall& call, const void* x, float* y, void* saved) override {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, m = model_.mlp_width;
    const Saved s(model_, call.mb.shape, saved);
    const float* in = static_cast<const float*>(x);
    float* scratch = static_cast<float*>(call.workspace);
    Ops& ops = *call.ops;

    Norm(ops, kNorm1Gain, in, s.norm1, s.mean1, s.rstd1, n);
    Linear(ops, kQkv, s.norm1, s.qkv, n, d, 3 * d);
    ops.Attention(s.qkv, s.attention, s.lse, Attention(call.mb), scratch);
    Linear(ops, kProjection, s.attention, s.residual, n, d, d);
    Drop(call, DropoutSite::kProjection, model_.residual_dropout, s.residual, s.residual);
    ops.Add(in, s.residual, s.residual, n * d);

    Norm(ops, kNorm2Gain, s.residual, s.norm2, s.mean2, s.rstd2, n);
    Linear(ops, kExpand, s.norm2, s.expanded, n, d, m);
    if (y == nullptr) return 0;
    float* activated = scratch;
    ops.Gelu(s.expanded, activated, n * m);
    Linear(ops, kContract, activated, y, n, m, d);
    Drop(call, DropoutSite::kMlp, model_.residual_dropout, y, y);
    ops.Add(s.residual, y, y, n * d);
    return 0;
  }

  double Backward(const LayerCall& call, const void* x, const void* saved, const float* dy,
                  float* dx) override {
    const int64_t n = call.mb.shape.tokens(), d = model_.width;
    const Saved s(model_, call.mb.shape, saved);
    Carver carver(call.workspace);
    float* narrow1 = carver.Floats(n * d);
    float* narrow2 = carver.Floats(n * d);
    BackwardMlp(call, s, dy, dx, narrow1, carver);
    BackwardAttention(call, s, static_cast<const float*>(x), dx, narrow1, narrow2, carver);
    return 0;
  }

 private:
  void Norm(Ops& ops, int gain, const float* x, float* y, float* mean, float* rstd, int64_t n) {
    ops.LayerNorm(x, weight(gain).value, weight(gain + 1).value, y, mean, rstd, n, model_.width,
                  static_cast<float>(model_.norm_epsilon));
  }
  void Linear(Ops& ops, int matrix, const float* x, float* y, int64_t n, int64_t in, int64_t out) {
    ops.Linear(x, weight(matrix).value, weight(matrix + 1).value, y, n, in, out);
  }
  void LinearBackwardWeight(Ops& ops, int matrix, const float* dy, const float* x, int64_t n,
                            int64_t in, int64_t out) {
    ops.LinearBackwardWeight(dy, x, weight(matrix).gradient, weight(matrix + 1).gradient, n, in,
                             out);
  }

  // dr = dy + (the second branch's gradient), into `dr`.
  void BackwardMlp(const LayerCall& call, const Saved& s, const float* dy, float* dr, float* narrow,
                   Carver carver) {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, m = model_.mlp_width;
    Ops& ops = *call.ops;
    float* wide = carver.Floats(n * m);  // the activation, then its gradient
    const float* branch = Drop(call, DropoutSite::kMlp, model_.residual_dropout, dy, narrow);
    ops.Gelu(s.expanded, wide, n * m);
    LinearBackwardWeight(ops, kContract, branch, wide, n, m, d);
    ops.LinearBackwardInput(branch, weight(kContract).value, wide, n, m, d, false);
    ops.GeluBackward(wide, s.expanded, wide, n * m);
    LinearBackwardWeight(ops, kExpand, wide, s.norm2, n, d, m);
    ops.LinearBackwardInput(wide, weight(kExpand).value, narrow, n, d, m, false);
    ops.LayerNormBackward(narrow, s.residual, weight(kNorm2Gain).value, s.mean2, s.rstd2, dr,
                          weight(kNorm2Gain).gradient, weight(kNorm2Bias).gradient, n, d, false);
    ops.Add(dy, dr, dr, n * d);
  }

  // dx = dr + (the first branch's gradient), in place.
  void BackwardAttention(const LayerCall& call, const Saved& s, const float* x, float* dx,
                         float* narrow1, float* narrow2, Carver carver) {
    const int64_t n = call.mb.shape.tokens(), d = model_.width;
    Ops& ops = *call.ops;
    float* dqkv = carver.Floats(n * 3 * d);
    float* scratch = static_cast<float*>(carver.Bytes(0));
    const float* branch =
        Drop(call, DropoutSite::kProjection, model_.residual_dropout, dx, narrow1);
    LinearBackwardWeight(ops, kProjection, branch, s.attention, n, d, d);
    ops.LinearBackwardInput(branch, weight(kProjection).value, narrow2, n, d, d, false);
    ops.AttentionBackward(narrow2, s.qkv, s.attention, s.lse, dqkv, Attention(call.mb), scratch);
    LinearBackwardWeight(ops, kQkv, dqkv, s.norm1, n, d, 3 * d);
    ops.LinearBackwardInput(dqkv, weight(kQkv).value, narrow1, n, d, 3 * d, false);
    ops.LayerNormBackward(narrow1, x, weight(kNorm1Gain).value, s.mean1, s.rstd1, dx,
                          weight(kNorm1Gain).gradient, weight(kNorm1Bias).gradient, n, d, true);
  }
};

}  // namespace

std::unique_ptr<Layer> CreateGpt2Block(const Model& model, const LayerSpec& spec,
                                       std::vector<Weight> weights) {
  return std::make_unique<Gpt2Block>(model, spec, std::move(weights));
}

}  // namespace headrace
