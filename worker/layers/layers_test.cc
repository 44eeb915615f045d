// Each layer alone, through a stage of one: its forward against the double-precision reference, its
// backward against that reference's finite differences, with dropout off and on.
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>

#include "gtest/gtest.h"
#include "worker/layers/layer.h"
#include "worker/layers/reference.h"
#include "worker/layers/stage_model.h"

namespace headrace {
namespace {

using reference::Numbers;
using reference::Reference;

// fp32 against double: rounding of sums a few dozen long.
constexpr double kForwardTolerance = 2e-6;
constexpr double kGradientTolerance = 2e-5;

Model SmallGpt2() {
  Model m;
  m.family = ModelFamily::kGpt2;
  m.layers = 2, m.width = 12, m.heads = 3, m.kv_heads = 3, m.head_size = 4;
  m.mlp_width = 21, m.context = 50, m.vocabulary = 13;
  return m;
}

Model SmallLlama() {
  Model m = SmallGpt2();
  m.family = ModelFamily::kLlama;
  m.width = 24, m.heads = 4, m.kv_heads = 2, m.head_size = 6;
  return m;
}

Model WithDropout(Model m) {
  m.attention_dropout = 0.2;
  if (m.family == ModelFamily::kGpt2) m.embedding_dropout = 0.3, m.residual_dropout = 0.25;
  return m;
}

// Pseudo-random numbers in [-1, 1), exact in fp32.
class Random {
 public:
  explicit Random(uint32_t seed) : seed_(seed) {}
  float Next() {
    const PhiloxBlock block = Philox({next_++, 0, 0, 0}, {seed_, 7});
    return 2 * UniformFloat(block[0]) - 1;
  }
  std::vector<float> Floats(int64_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = Next();
    return values;
  }
  std::vector<int32_t> Ids(int64_t n, int64_t vocabulary) {
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>((Next() + 1) / 2 * vocabulary);
    return ids;
  }

 private:
  uint32_t seed_, next_ = 0;
};

Numbers ToDouble(const float* values, int64_t n) { return Numbers(values, values + n); }

double Distance(const Numbers& a, const Numbers& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference) / (std::sqrt(norm) + 1e-300);
}

// Central differences of `f` in each of `values`.
Numbers Differences(Numbers* values, const std::function<double()>& f) {
  const double h = 1e-5;
  Numbers gradient;
  for (double& value : *values) {
    const double at = value;
    value = at + h;
    const double above = f();
    value = at - h;
    const double below = f();
    value = at;
    gradient.push_back((above - below) / (2 * h));
  }
  return gradient;
}

// A stage of one layer, and the reference with the same numbers in it.
class OneLayer {
 public:
  OneLayer(const Model& model, int64_t layer, MicroBatchShape shape)
      : layer_(layer), ops_(CreateCpuOps(1)) {
    stage_.model = model;
    stage_.layers = {BuildLayers(model)[layer]};
    stage_.largest = shape;
    arena_ = Arena::Create(64 << 20).value();
    model_ = StageModel::Create(stage_, arena_.get(), ops_.get()).value();
    mb_.shape = shape;
    mb_.seed = 99, mb_.step = 3, mb_.micro_batch = 1, mb_.loss_scale = 0.125f;
    ref_.model = model;
    ref_.shape = shape;
    Random random(5);
    for (Parameter& p : model_->parameters()) {
      float* w = p.weight.f32();
      for (int64_t i = 0; i < p.weight.elements(); ++i) {
        w[i] = p.spec.init == Init::kOne ? 1 + 0.3f * random.Next() : 0.5f * random.Next();
      }
      ref_.parameters[p.spec.name] = ToDouble(w, p.weight.elements());
    }
    kept_.resize(WorkingSetBytes(stage_) / 64 + 1);
    TakeMasks();
  }

  void* kept() { return kept_.data(); }
  StageModel& model() { return *model_; }
  MicroBatch& mb() { return mb_; }
  Reference& ref() { return ref_; }
  const StageShape& stage() const { return stage_; }

  void ExpectGradients(const std::function<double()>& loss) {
    for (const Parameter& p : model_->parameters()) {
      const Numbers expected = Differences(&ref_.parameters[p.spec.name], loss);
      const Numbers got = ToDouble(p.gradient.f32(), p.gradient.elements());
      EXPECT_LT(Distance(got, expected), kGradientTolerance) << p.spec.name;
    }
  }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };

  RandomStream Stream(DropoutSite site) const {
    return MakeStream(mb_.seed, RandomPurpose::kDropout, mb_.step, mb_.micro_batch,
                      layer_ * kDropoutSites + static_cast<uint32_t>(site));
  }

  Numbers ElementMask(DropoutSite site, double p) {
    if (p == 0) return {};
    std::vector<float> ones(mb_.shape.tokens() * stage_.model.width, 1.0f);
    ops_->Dropout(ones.data(), ones.data(), ones.size(), p, Stream(site));
    return ToDouble(ones.data(), ones.size());
  }

  // With q = k = 0 every probability of row i is 1 / (i + 1), and with the unit matrix for v they
  // come out of attention one by one, masked.
  Numbers ProbabilityMask() {
    const Model& m = stage_.model;
    if (m.attention_dropout == 0) return {};
    AttentionShape shape{mb_.shape.sequences,
                         mb_.shape.length,
                         m.heads,
                         m.heads,
                         mb_.shape.length,
                         static_cast<float>(m.attention_dropout),
                         Stream(DropoutSite::kAttention)};
    const int64_t t = shape.length, n = mb_.shape.tokens(), row = m.heads * t;
    std::vector<float> qkv(n * 3 * row, 0.0f), out(n * row), lse(n * m.heads);
    for (int64_t token = 0; token < n; ++token) {
      for (int64_t h = 0; h < m.heads; ++h) qkv[token * 3 * row + 2 * row + h * t + token % t] = 1;
    }
    std::vector<float> workspace(AttentionWorkspaceBytes(shape, 1) / 4);
    ops_->Attention(qkv.data(), out.data(), lse.data(), shape, workspace.data());
    Numbers mask;
    for (int64_t s = 0; s < shape.sequences; ++s) {
      for (int64_t h = 0; h < m.heads; ++h) {
        for (int64_t i = 0; i < t; ++i) {
          for (int64_t j = 0; j < t; ++j) {
            mask.push_back(out[(s * t + i) * row + h * t + j] * static_cast<double>(i + 1));
          }
        }
      }
    }
    return mask;
  }

  void TakeMasks() {
    const Model& m = stage_.model;
    ref_.embedding_mask = ElementMask(DropoutSite::kEmbedding, m.embedding_dropout);
    ref_.projection_mask = ElementMask(DropoutSite::kProjection, m.residual_dropout);
    ref_.mlp_mask = ElementMask(DropoutSite::kMlp, m.residual_dropout);
    ref_.attention_mask = ProbabilityMask();
  }

  int64_t layer_;
  StageShape stage_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<StageModel> model_;
  MicroBatch mb_;
  Reference ref_;
  std::vector<Line> kept_;
};

void CheckEmbedding(const Model& model) {
  OneLayer t(model, 0, {3, 5});
  const int64_t n = t.mb().shape.tokens() * model.width;
  Random random(1);
  const std::vector<int32_t> ids = random.Ids(15, model.vocabulary);
  const std::vector<float> dy = random.Floats(n);
  std::vector<float> y(n);
  t.model().Forward(t.mb(), ids.data(), y.data(), t.kept());
  EXPECT_LT(Distance(ToDouble(y.data(), n), t.ref().Embedding(ids)), kForwardTolerance);
  t.model().Backward(t.mb(), ids.data(), t.kept(), dy.data(), nullptr);
  t.ExpectGradients([&] {
    double sum = 0;
    const Numbers out = t.ref().Embedding(ids);
    for (int64_t i = 0; i < n; ++i) sum += out[i] * dy[i];
    return sum;
  });
}

void CheckBlock(const Model& model, MicroBatchShape shape) {
  OneLayer t(model, 2, shape);  // block 1
  const int64_t n = shape.tokens() * model.width;
  Random random(2);
  const std::vector<float> x = random.Floats(n), dy = random.Floats(n);
  std::vector<float> y(n), dx(n, 1e9f);
  Numbers in = ToDouble(x.data(), n);
  auto forward = [&] {
    return model.family == ModelFamily::kGpt2 ? t.ref().Gpt2Block(1, in)
                                              : t.ref().LlamaBlock(1, in);
  };
  auto loss = [&] {
    double sum = 0;
    const Numbers out = forward();
    for (int64_t i = 0; i < n; ++i) sum += out[i] * dy[i];
    return sum;
  };
  t.model().Forward(t.mb(), x.data(), y.data(), t.kept());
  EXPECT_LT(Distance(ToDouble(y.data(), n), forward()), kForwardTolerance);
  t.model().Backward(t.mb(), x.data(), t.kept(), dy.data(), dx.data());
  EXPECT_LT(Distance(ToDouble(dx.data(), n), Differences(&in, loss)), kGradientTolerance);
  t.ExpectGradients(loss);
}

void CheckHead(const Model& model, MicroBatchShape shape) {
  OneLayer t(model, 3, shape);
  const int64_t n = shape.tokens() * model.width;
  Random random(3);
  const std::vector<float> x = random.Floats(n);
  const std::vector<int32_t> targets = random.Ids(shape.tokens(), model.vocabulary);
  t.mb().targets = targets.data();
  Numbers in = ToDouble(x.data(), n);
  std::vector<float> dx(n, 1e9f);
  double loss = 0, evaluated = 0;
  t.mb().loss = &loss;
  t.model().Forward(t.mb(), x.data(), nullptr, t.kept());
  EXPECT_EQ(loss, 0);
  t.model().Backward(t.mb(), x.data(), t.kept(), nullptr, dx.data());
  EXPECT_NEAR(loss / t.ref().Head(in, targets), 1, kForwardTolerance);
  MicroBatch evaluation = t.mb();
  evaluation.training = false;
  evaluation.loss = &evaluated;
  t.model().Forward(evaluation, x.data(), nullptr, nullptr);
  EXPECT_EQ(evaluated, loss);
  auto scaled = [&] { return t.ref().Head(in, targets) * t.mb().loss_scale; };
  EXPECT_LT(Distance(ToDouble(dx.data(), n), Differences(&in, scaled)), kGradientTolerance);
  t.ExpectGradients(scaled);
}

TEST(Embedding, OfGpt2HasTheGradientsOfFiniteDifferences) { CheckEmbedding(SmallGpt2()); }
TEST(Embedding, OfGpt2WithDropoutToo) { CheckEmbedding(WithDropout(SmallGpt2())); }
TEST(Embedding, OfLlamaHasTheGradientsOfFiniteDifferences) { CheckEmbedding(SmallLlama()); }

TEST(Gpt2Block, HasTheGradientsOfFiniteDifferences) { CheckBlock(SmallGpt2(), {3, 5}); }
TEST(Gpt2Block, WithDropoutHasTheGradientsOfFiniteDifferences) {
  CheckBlock(WithDropout(SmallGpt2()), {2, 7});
}
TEST(Gpt2Block, OfOneTokenHasTheGradientsOfFiniteDifferences) { CheckBlock(SmallGpt2(), {1, 1}); }

TEST(LlamaBlock, HasTheGradientsOfFiniteDifferences) { CheckBlock(SmallLlama(), {3, 5}); }
TEST(LlamaBlock, WithDropoutHasTheGradientsOfFiniteDifferences) {
  CheckBlock(WithDropout(SmallLlama()), {2, 7});
}
TEST(LlamaBlock, WithOneKeyValueHeadForAllQueriesToo) {
  Model m = SmallLlama();
  m.kv_heads = 1;
  CheckBlock(m, {2, 3});
}

TEST(Head, OfGpt2HasTheGradientsOfFiniteDifferences) { CheckHead(SmallGpt2(), {2, 5}); }
TEST(Head, OfLlamaHasTheGradientsOfFiniteDifferences) { CheckHead(SmallLlama(), {2, 5}); }
TEST(Head, OfMoreTokensThanABlockOfLogitsToo) {
  ASSERT_GT(7 * 43, kHeadRows);
  Model m = SmallGpt2();
  m.width = 3, m.heads = 1, m.kv_heads = 1, m.head_size = 3, m.vocabulary = 5;
  CheckHead(m, {7, 43});
}
TEST(Head, WithATiedWeightHasTheBorrowedWeightsGradient) {
  Model m = SmallGpt2();
  m.tied = true;
  CheckHead(m, {2, 5});
}

TEST(Layers, WithoutTrainingNothingIsDropped) {
  for (int64_t layer : {0, 1}) {
    OneLayer plain(SmallGpt2(), layer, {2, 5}), dropping(WithDropout(SmallGpt2()), layer, {2, 5});
    plain.mb().training = dropping.mb().training = false;
    const std::vector<int32_t> ids = Random(1).Ids(10, 13);
    const std::vector<float> hidden = Random(1).Floats(10 * 12);
    const void* x = layer == 0 ? static_cast<const void*>(ids.data()) : hidden.data();
    std::vector<float> a(10 * 12), b(10 * 12);
    plain.model().Forward(plain.mb(), x, a.data(), nullptr);
    dropping.model().Forward(dropping.mb(), x, b.data(), nullptr);
    EXPECT_EQ(a, b) << layer;
  }
}

TEST(Layers, AttentionsScratchIsWhatThePlanCounts) {
  for (int64_t length : {1, 15, 16, 17, 64, 257}) {
    for (int64_t size : {1, 5, 64, 80}) {
      for (int threads : {1, 3}) {
        const AttentionShape shape{2, length, 4, 2, size, 0, {}};
        EXPECT_EQ(AttentionWorkspaceBytes(shape, threads),
                  AttentionScratchBytes(length, size, threads))
            << length << " tokens of " << size << ", " << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace headrace
