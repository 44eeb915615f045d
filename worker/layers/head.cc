// The last layer: final norm, output projection and softmax-cross-entropy, kHeadRows tokens at a
// time. The vocabulary is the widest thing in a model (GPT-2: 65 times the hidden state), so logits
// are formed, used and dropped block by block; backward forms them again.
#include <algorithm>
#include <utility>

#include "worker/layers/carver.h"
#include "worker/layers/layer.h"

namespace headrace {
namespace {

// The views into `saved`, in the order of SavedTensors.
struct Saved {
  Saved(const Model& m, const MicroBatchShape& s, const void* region) {
    const int64_t n = s.tokens();
    Carver carver(region);
    mean = m.family == ModelFamily::kGpt2 ? carver.Floats(n) : nullptr;
    rstd = carver.Floats(n);
    norm = carver.Floats(n * m.width);
  }

  float *mean, *rstd, *norm;
};

class Head : public HeadLayer {
 public:
  Head(const Model& model, const LayerSpec& spec, std::vector<Weight> weights)
      : HeadLayer(model, spec, std::move(weights)),
        layer_norm_(model.family == ModelFamily::kGpt2),
        projection_(layer_norm_ ? 2 : 1) {}

  double Forward(const LayerCall& call, const void* x, float* y, void* saved) override {
    Recompute(call, x, y, saved);
    const Saved s(model_, call.mb.shape, saved);
    const int64_t n = call.mb.shape.tokens();
    float* logits = static_cast<float*>(call.workspace);
    double loss = 0;
    for (int64_t first = 0; first < n; first += kHeadRows) {
      const int64_t rows = std::min(kHeadRows, n - first);
      Project(*call.ops, s.norm + first * model_.width, logits, rows);
      loss += call.ops->CrossEntropy(logits, call.mb.targets + first, rows, model_.vocabulary);
    }
    return loss;
  }

  // The norm is all that backward needs.
  void Recompute(const LayerCall& call, const void* x, float* /*y*/, void* saved) override {
    const Saved s(model_, call.mb.shape, saved);
    Norm(*call.ops, static_cast<const float*>(x), s.norm, s.mean, s.rstd, call.mb.shape.tokens());
  }

  void Backward(const LayerCall& call, const void* x, const void* saved, const float* /*dy*/,
                float* dx) override {
    const Saved s(model_, call.mb.shape, saved);
    const int64_t n = call.mb.shape.tokens(), d = model_.width, v = model_.vocabulary;
    const Weight& w = weight(projection_);
    Ops& ops = *call.ops;
    Carver carver(call.workspace);
    float* logits = carver.Floats(std::min(kHeadRows, n) * v);
    float* dnorm = carver.Floats(std::min(kHeadRows, n) * d);
    for (int64_t first = 0; first < n; first += kHeadRows) {
      const int64_t rows = std::min(kHeadRows, n - first);
      const float* norm = s.norm + first * d;
      Project(ops, norm, logits, rows);
      ops.CrossEntropyBackward(logits, call.mb.targets + first, rows, v, call.mb.loss_scale);
      ops.LinearBackwardWeight(logits, norm, w.gradient, nullptr, rows, d, v);
      ops.LinearBackwardInput(logits, w.value, dnorm, rows, d, v, false);
      BackwardNorm(ops, dnorm, static_cast<const float*>(x), s, dx, first, rows);
    }
  }

  void Logits(const LayerCall& call, const float* x, void* saved, float* logits) override {
    const Saved s(model_, {1, 1}, saved);
    Norm(*call.ops, x, s.norm, s.mean, s.rstd, 1);
    Project(*call.ops, s.norm, logits, 1);
  }

 private:
  void Norm(Ops& ops, const float* x, float* y, float* mean, float* rstd, int64_t n) {
    const float epsilon = static_cast<float>(model_.norm_epsilon);
    if (layer_norm_) {
      ops.LayerNorm(x, weight(0).value, weight(1).value, y, mean, rstd, n, model_.width, epsilon);
    } else {
      ops.RmsNorm(x, weight(0).value, y, rstd, n, model_.width, epsilon);
    }
  }

  // Rows [first, first + rows) of dx from their part of the gradient.
  void BackwardNorm(Ops& ops, const float* dnorm, const float* x, const Saved& s, float* dx,
                    int64_t first, int64_t rows) {
    const int64_t d = model_.width;
    if (layer_norm_) {
      ops.LayerNormBackward(dnorm, x + first * d, weight(0).value, s.mean + first, s.rstd + first,
                            dx + first * d, weight(0).gradient, weight(1).gradient, rows, d, false);
    } else {
      ops.RmsNormBackward(dnorm, x + first * d, weight(0).value, s.rstd + first, dx + first * d,
                          weight(0).gradient, rows, d, false);
    }
  }

  void Project(Ops& ops, const float* norm, float* logits, int64_t rows) {
    ops.Linear(norm, weight(projection_).value, nullptr, logits, rows, model_.width,
               model_.vocabulary);
  }

  const bool layer_norm_;
  const int projection_;  // index of the output matrix: own or borrowed, it comes last
};

}  // namespace

std::unique_ptr<HeadLayer> CreateHead(const Model& model, const LayerSpec& spec,
                                      std::vector<Weight> weights) {
  return std::make_unique<Head>(model, spec, std::move(weights));
}

}  // namespace headrace
