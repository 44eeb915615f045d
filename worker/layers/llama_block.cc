// A Llama block (Touvron et al. 2023), pre-norm, with rotary positions and grouped queries:
//
//   r = x + attention(rope(rms_norm(x) · [q; k; v]ᵀ)) · oᵀ
//   y = r + (silu(gate) ⊙ up) · downᵀ     with [gate | up] = rms_norm(r) · [gate; up]ᵀ
//
// q, k and v are rows of one matrix, as are gate and up (ParameterSpec::joins_previous).
#include <utility>

#include "worker/layers/carver.h"
#include "worker/layers/layer.h"

namespace headrace {
namespace {

enum WeightIndex { kNorm1Gain, kQkv, kKey, kValue, kOutput, kNorm2Gain, kGateUp, kUp, kDown };

int64_t QkvWidth(const Model& m) { return (m.heads + 2 * m.kv_heads) * m.head_size; }

// The views into `saved`, in the order of SavedTensors.
struct Saved {
  Saved(const Model& m, const MicroBatchShape& s, const void* region) {
    const int64_t n = s.tokens();
    Carver carver(region);
    rstd1 = carver.Floats(n);
    norm1 = carver.Floats(n * m.width);
    qkv = carver.Floats(n * QkvWidth(m));
    attention = carver.Floats(n * m.width);
    lse = carver.Floats(n * m.heads);
    residual = carver.Floats(n * m.width);
    rstd2 = carver.Floats(n);
    norm2 = carver.Floats(n * m.width);
    gate_up = carver.Floats(n * 2 * m.mlp_width);
  }

  float *rstd1, *norm1, *qkv /* rotated */, *attention, *lse, *residual, *rstd2, *norm2, *gate_up;
};

class LlamaBlock : public Layer {
 public:
  LlamaBlock(const Model& model, const LayerSpec& spec, std::vector<Weight> weights,
             RopeTables rope)
      : Layer(model, spec, std::move(weights)), rope_(rope) {}

  double Forward(const LayerCall& call, const void* x, float* y, void* saved) override {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, m = model_.mlp_width;
    const Saved s(model_, call.mb.shape, saved);
    const AttentionShape attention = Attention(call.mb);
    const float* in = static_cast<const float*>(x);
    float* scratch = static_cast<float*>(call.workspace);
    Ops& ops = *call.ops;

    Norm(ops, kNorm1Gain, in, s.norm1, s.rstd1, n);
    ops.Linear(s.norm1, weight(kQkv).value, nullptr, s.qkv, n, d, QkvWidth(model_));
    ops.Rope(s.qkv, rope_.cos, rope_.sin, attention, false);
    ops.Attention(s.qkv, s.attention, s.lse, attention, scratch);
    ops.Linear(s.attention, weight(kOutput).value, nullptr, s.residual, n, d, d);
    ops.Add(in, s.residual, s.residual, n * d);

    Norm(ops, kNorm2Gain, s.residual, s.norm2, s.rstd2, n);
    ops.Linear(s.norm2, weight(kGateUp).value, nullptr, s.gate_up, n, d, 2 * m);
    if (y == nullptr) return 0;
    float* activated = scratch;
    ops.SwiGlu(s.gate_up, activated, n, m);
    ops.Linear(activated, weight(kDown).value, nullptr, y, n, m, d);
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
  void Norm(Ops& ops, int gain, const float* x, float* y, float* rstd, int64_t n) {
    ops.RmsNorm(x, weight(gain).value, y, rstd, n, model_.width,
                static_cast<float>(model_.norm_epsilon));
  }

  // dr = dy + (the second branch's gradient), into `dr`.
  void BackwardMlp(const LayerCall& call, const Saved& s, const float* dy, float* dr, float* narrow,
                   Carver carver) {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, m = model_.mlp_width;
    Ops& ops = *call.ops;
    float* wide = carver.Floats(n * m);  // the activation, then its gradient
    float* dgate_up = carver.Floats(n * 2 * m);
    ops.SwiGlu(s.gate_up, wide, n, m);
    ops.LinearBackwardWeight(dy, wide, weight(kDown).gradient, nullptr, n, m, d);
    ops.LinearBackwardInput(dy, weight(kDown).value, wide, n, m, d, false);
    ops.SwiGluBackward(wide, s.gate_up, dgate_up, n, m);
    ops.LinearBackwardWeight(dgate_up, s.norm2, weight(kGateUp).gradient, nullptr, n, d, 2 * m);
    ops.LinearBackwardInput(dgate_up, weight(kGateUp).value, narrow, n, d, 2 * m, false);
    ops.RmsNormBackward(narrow, s.residual, weight(kNorm2Gain).value, s.rstd2, dr,
                        weight(kNorm2Gain).gradient, n, d, false);
    ops.Add(dy, dr, dr, n * d);
  }

  // dx = dr + (the first branch's gradient), in place.
  void BackwardAttention(const LayerCall& call, const Saved& s, const float* x, float* dx,
                         float* narrow1, float* narrow2, Carver carver) {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, q = QkvWidth(model_);
    const AttentionShape attention = Attention(call.mb);
    Ops& ops = *call.ops;
    float* dqkv = carver.Floats(n * q);
    float* scratch = static_cast<float*>(carver.Bytes(0));
    ops.LinearBackwardWeight(dx, s.attention, weight(kOutput).gradient, nullptr, n, d, d);
    ops.LinearBackwardInput(dx, weight(kOutput).value, narrow2, n, d, d, false);
    ops.AttentionBackward(narrow2, s.qkv, s.attention, s.lse, dqkv, attention, scratch);
    ops.Rope(dqkv, rope_.cos, rope_.sin, attention, true);
    ops.LinearBackwardWeight(dqkv, s.norm1, weight(kQkv).gradient, nullptr, n, d, q);
    ops.LinearBackwardInput(dqkv, weight(kQkv).value, narrow1, n, d, q, false);
    ops.RmsNormBackward(narrow1, x, weight(kNorm1Gain).value, s.rstd1, dx,
                        weight(kNorm1Gain).gradient, n, d, true);
  }

  const RopeTables rope_;
};

}  // namespace

std::unique_ptr<Layer> CreateLlamaBlock(const Model& model, const LayerSpec& spec,
                                        std::vector<Weight> weights, RopeTables rope) {
  return std::make_unique<LlamaBlock>(model, spec, std::move(weights), rope);
}

}  // namespace headrace
