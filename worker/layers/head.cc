// The last layer: final norm, output projection and softmax-cross-entropy, Layout::head_rows tokens
// at a time. The vocabulary is the widest thing in a model (GPT-2: 65 times the hidden state), so
// logits are formed, used and dropped block by block. In training they are formed once, in
// backward, which gives loss and gradient in one go: forward and recompute have nothing to do and
// nothing to keep.
#include <algorithm>
#include <utility>

#include "worker/layers/layer.h"

namespace headrace {
namespace {

// The temporaries of one block of rows, as plan/layer_spec.cc counts them.
struct Block {
  Block(const Model& m, const LayerCall& call, int64_t rows) {
    Carver carver = call.Carve(call.workspace);
    logits = carver.Acts(rows * m.vocabulary);
    hidden = carver.Acts(rows * m.width);
    mean = m.family == ModelFamily::kGpt2 ? carver.Floats(rows) : nullptr;
    rstd = carver.Floats(rows);
  }

  Act logits, hidden /* the norm's output, then its gradient */;
  float *mean, *rstd;
};

class Head : public HeadLayer {
 public:
  Head(const Model& model, const LayerSpec& spec, std::vector<Weight> weights, int64_t head_rows)
      : HeadLayer(model, spec, std::move(weights)),
        head_rows_(head_rows),
        layer_norm_(model.family == ModelFamily::kGpt2),
        projection_(layer_norm_ ? 2 : 1) {}

  void Forward(const LayerCall& call, const void* x, Act /*y*/, void* /*saved*/) override {
    if (call.mb.training) return;
    const int64_t n = call.mb.shape.tokens(), d = model_.width;
    const Block block(model_, call, std::min(head_rows_, n));
    for (int64_t first = 0; first < n; first += head_rows_) {
      const int64_t rows = std::min(head_rows_, n - first);
      Norm(*call.ops, call.Hidden(x) + first * d, block, rows);
      Project(*call.ops, block.hidden, block.logits, rows);
      call.ops->CrossEntropy(block.logits, call.mb.targets + first, call.mb.loss, rows,
                             model_.vocabulary);
    }
  }

  void Backward(const LayerCall& call, const void* x, const void* /*saved*/, ConstAct /*dy*/,
                Act dx) override {
    const int64_t n = call.mb.shape.tokens(), d = model_.width, v = model_.vocabulary;
    const Weight& w = weight(projection_);
    const Block block(model_, call, std::min(head_rows_, n));
    Ops& ops = *call.ops;
    for (int64_t first = 0; first < n; first += head_rows_) {
      const int64_t rows = std::min(head_rows_, n - first);
      const ConstAct in = call.Hidden(x) + first * d;
      Norm(ops, in, block, rows);
      Project(ops, block.hidden, block.logits, rows);
      ops.CrossEntropyBackward(block.logits, call.mb.targets + first, call.mb.loss, rows, v,
                               call.mb.loss_scale);
      ops.LinearBackwardWeight(block.logits, block.hidden, w.gradient, nullptr, rows, d, v);
      ops.LinearBackwardInput(block.logits, w, block.hidden, rows, d, v, false);
      BackwardNorm(ops, in, block, dx + first * d, rows);
    }
  }

  void Logits(const LayerCall& call, ConstAct x, float* logits) override {
    const Block block(model_, call, 1);
    Norm(*call.ops, x, block, 1);
    Project(*call.ops, block.hidden, block.logits, 1);
    if (block.logits.type() == ElementType::kBfloat16) {
      call.ops->WidenBf16(block.logits.bf16(), logits, model_.vocabulary);
    } else {
      call.ops->Copy(block.logits.f32(), logits, model_.vocabulary);
    }
  }

 private:
  void Norm(Ops& ops, ConstAct x, const Block& block, int64_t rows) {
    const float epsilon = static_cast<float>(model_.norm_epsilon);
    if (layer_norm_) {
      ops.LayerNorm(x, weight(0).value, weight(1).value, block.hidden, block.mean, block.rstd, rows,
                    model_.width, epsilon);
    } else {
      ops.RmsNorm(x, weight(0).value, block.hidden, block.rstd, rows, model_.width, epsilon);
    }
  }

  void BackwardNorm(Ops& ops, ConstAct x, const Block& block, Act dx, int64_t rows) {
    const int64_t d = model_.width;
    if (layer_norm_) {
      ops.LayerNormBackward(block.hidden, x, weight(0).value, block.mean, block.rstd, nullptr, dx,
                            weight(0).gradient, weight(1).gradient, rows, d);
    } else {
      ops.RmsNormBackward(block.hidden, x, weight(0).value, block.rstd, nullptr, dx,
                          weight(0).gradient, rows, d);
    }
  }

  void Project(Ops& ops, ConstAct norm, Act logits, int64_t rows) {
    ops.Linear(norm, weight(projection_), nullptr, logits, rows, model_.width, model_.vocabulary);
  }

  const int64_t head_rows_;
  const bool layer_norm_;
  const int projection_;  // index of the output matrix: own or borrowed, it comes last
};

}  // namespace

std::unique_ptr<HeadLayer> CreateHead(const Model& model, const LayerSpec& spec,
                                      std::vector<Weight> weights, int64_t head_rows) {
  return std::make_unique<Head>(model, spec, std::move(weights), head_rows);
}

}  // namespace headrace
