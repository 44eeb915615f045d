// A Llama block (Touvron et al. 2023), pre-norm, with rotary positions and grouped queries:
//
//   r = x + attention(rope(rms_norm(x) · [q; k; v]ᵀ)) · oᵀ
//   y = r + (silu(gate) ⊙ up) · downᵀ     with [gate | up] = rms_norm(r) · [gate; up]ᵀ
//
// q, k and v are rows of one matrix, as are gate and up (ParameterSpec::joins_previous).
#include <utility>

#include "worker/layers/layer.h"

namespace headrace {
namespace {

enum WeightIndex { kNorm1Gain, kQkv, kKey, kValue, kOutput, kNorm2Gain, kGateUp, kUp, kDown };

int64_t QkvWidth(const Model& m) { return (m.heads + 2 * m.kv_heads) * m.head_size; }

// The views into `saved`, in the order of SavedTensors.
struct Saved {
  Saved(const Model& m, const LayerCall& call, const void* region) {
    const int64_t n = call.mb.shape.tokens();
    Carver carver = call.Carve(region);
    rstd1 = carver.Floats(n);
    norm1 = carver.Acts(n * m.width);
    qkv = carver.Acts(n * QkvWidth(m));
    attention = carver.Acts(n * m.width);
    lse = carver.Floats(n * m.heads);
    residual = carver.Acts(n * m.width);
    rstd2 = carver.Floats(n);
    norm2 = carver.Acts(n * m.width);
    gate_up = carver.Acts(n * 2 * m.mlp_width);
  }

  float *rstd1, *lse, *rstd2;
  Act norm1, qkv /* rotated */, attention, residual, norm2, gate_up;
};

class LlamaBlock : public Layer {
 public:
  LlamaBlock(const Model& model, const LayerSpec& spec, std::vector<Weight> weights,
             RopeTables rope)
      : Layer(model, spec, std::move(weights)), rope_(rope) {}

  void Forward(const LayerCall& call, const void* x, Act y, void* saved) override {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, m = model_.mlp_width;
    const Saved s(model_, call, saved);
    const AttentionShape attention = Attention(call.mb);
    const ConstAct in = call.Hidden(x);
    Ops& ops = *call.ops;

    Norm(ops, kNorm1Gain, in, s.norm1, s.rstd1, n);
    ops.Linear(s.norm1, weight(kQkv), nullptr, s.qkv, n, d, QkvWidth(model_));
    ops.Rope(s.qkv, rope_.cos, rope_.sin, attention, false);
    ops.Attention(s.qkv, s.attention, s.lse, attention, static_cast<float*>(call.workspace));
    ops.LinearAdd(s.attention, weight(kOutput), nullptr, in, s.residual, n, d, d);

    Norm(ops, kNorm2Gain, s.residual, s.norm2, s.rstd2, n);
    ops.Linear(s.norm2, weight(kGateUp), nullptr, s.gate_up, n, d, 2 * m);
    if (y == nullptr) return;
    const Act activated = call.Carve(call.workspace).Acts(n * m);
    ops.SwiGlu(s.gate_up, activated, n, m);
    ops.LinearAdd(activated, weight(kDown), nullptr, s.residual, y, n, m, d);
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
  void Norm(Ops& ops, int gain, ConstAct x, Act y, float* rstd, int64_t n) {
    ops.RmsNorm(x, weight(gain).value, y, rstd, n, model_.width,
                static_cast<float>(model_.norm_epsilon));
  }

  // dr = dy + (the second branch's gradient), into `dr`.
  void BackwardMlp(const LayerCall& call, const Saved& s, ConstAct dy, Act dr, Act narrow,
                   Carver carver) {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, m = model_.mlp_width;
    Ops& ops = *call.ops;
    const Act wide = carver.Acts(n * m);  // the activation, then its gradient
    const Act dgate_up = carver.Acts(n * 2 * m);
    ops.SwiGlu(s.gate_up, wide, n, m);
    ops.LinearBackwardWeight(dy, wide, weight(kDown).gradient, nullptr, n, m, d);
    ops.LinearBackwardInput(dy, weight(kDown), wide, n, m, d, false);
    ops.SwiGluBackward(wide, s.gate_up, dgate_up, n, m);
    ops.LinearBackwardWeight(dgate_up, s.norm2, weight(kGateUp).gradient, nullptr, n, d, 2 * m);
    ops.LinearBackwardInput(dgate_up, weight(kGateUp), narrow, n, d, 2 * m, false);
    ops.RmsNormBackward(narrow, s.residual, weight(kNorm2Gain).value, s.rstd2, dy, dr,
                        weight(kNorm2Gain).gradient, n, d);
  }

  // dx = dr + (the first branch's gradient), in place.
  void BackwardAttention(const LayerCall& call, const Saved& s, ConstAct x, Act dx, Act narrow1,
                         Act narrow2, Carver carver) {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, q = QkvWidth(model_);
    const AttentionShape attention = Attention(call.mb);
    Ops& ops = *call.ops;
    const Act dqkv = carver.Acts(n * q);
    float* scratch = static_cast<float*>(carver.Bytes(0));
    ops.LinearBackwardWeight(dx, s.attention, weight(kOutput).gradient, nullptr, n, d, d);
    ops.LinearBackwardInput(dx, weight(kOutput), narrow2, n, d, d, false);
    ops.AttentionBackward(narrow2, s.qkv, s.attention, s.lse, dqkv, attention, scratch);
    ops.Rope(dqkv, rope_.cos, rope_.sin, attention, true);
    ops.LinearBackwardWeight(dqkv, s.norm1, weight(kQkv).gradient, nullptr, n, d, q);
    ops.LinearBackwardInput(dqkv, weight(kQkv), narrow1, n, d, q, false);
    ops.RmsNormBackward(narrow1, x, weight(kNorm1Gain).value, s.rstd1, dx, dx,
                        weight(kNorm1Gain).gradient, n, d);
  }

  const RopeTables rope_;
};

}  // namespace

std::unique_ptr<Layer> CreateLlamaBlock(const Model& model, const LayerSpec& spec,
                                        std::vector<Weight> weights, RopeTables rope) {
  return std::make_unique<LlamaBlock>(model, spec, std::move(weights), rope);
}

}  // namespace headrace
