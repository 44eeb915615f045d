// A model cut into stages, trained by hand as the executor does it: the same bits however it is cut
// and whatever is recomputed, in exactly the bytes that plan/ predicts.
#include "worker/layers/stage_model.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Model Gpt2() {
  Model m;
  m.family = ModelFamily::kGpt2;
  m.layers = 2, m.width = 20, m.heads = 4, m.kv_heads = 4, m.head_size = 5;
  m.mlp_width = 37, m.context = 17, m.vocabulary = 31, m.tied = true;
  m.embedding_dropout = 0.1, m.attention_dropout = 0.2, m.residual_dropout = 0.3;
  return m;
}

Model Llama() {
  Model m;
  m.family = ModelFamily::kLlama;
  m.layers = 2, m.width = 24, m.heads = 4, m.kv_heads = 2, m.head_size = 6;
  m.mlp_width = 37, m.context = 17, m.vocabulary = 31;
  m.attention_dropout = 0.2;
  return m;
}

constexpr int64_t kLength = 13;
constexpr int64_t kSizes[] = {2, 1};  // sequences of each micro-batch

struct alignas(64) Line {
  char bytes[64];
};

struct Stage {
  StageShape shape;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<StageModel> model;
};

double SquaredNormOf(Ops& ops, const float* x, int64_t count) {
  double sum = 0;
  ops.SquaredNorm(x, count, &sum);
  return sum;
}

enum class Keep { kAll, kBoundary };

// The stages of one model in one process, and one mini-batch at a time through them.
class Pipeline {
 public:
  // `cuts`: where stages begin, and the end.
  Pipeline(const Model& model, const std::vector<int64_t>& cuts) : ops_(CreateCpuOps(1)) {
    const std::vector<LayerSpec> layers = BuildLayers(model);
    for (size_t k = 0; k + 1 < cuts.size(); ++k) {
      Stage stage;
      stage.shape.model = model;
      stage.shape.layers = {layers.begin() + cuts[k], layers.begin() + cuts[k + 1]};
      stage.shape.stage = static_cast<int64_t>(k);
      stage.shape.num_stages = static_cast<int64_t>(cuts.size()) - 1;
      stage.shape.largest = {kSizes[0], kLength};
      stage.arena = Arena::Create(64 << 20).value();
      stage.model = StageModel::Create(stage.shape, stage.arena.get(), ops_.get()).value();
      stage.model->Initialise(7);
      stages_.push_back(std::move(stage));
    }
  }

  std::vector<Stage>& stages() { return stages_; }
  Ops& ops() { return *ops_; }

  // One step of plain gradient descent. Returns the summed loss.
  double Step(int64_t step, Keep keep) {
    for (Stage& stage : stages_) stage.model->ZeroGradients();
    double loss = 0;
    for (int64_t m = 0; m < 2; ++m) loss += MicroBatchStep(step, m, keep);
    Tie();
    for (Parameter* p : Owned()) {
      const UpdatedTensor updated{
          .w = p->weight.f32(), .g = p->gradient.f32(), .count = p->weight.elements()};
      ops_->Sgd({&updated, 1}, {.learning_rate = 0.5f});
    }
    SendTiedWeight();
    return loss;
  }

  std::vector<Parameter*> Owned() {
    std::vector<Parameter*> owned;
    for (Stage& stage : stages_) {
      for (Parameter& p : stage.model->parameters()) {
        if (!p.borrowed) owned.push_back(&p);
      }
    }
    return owned;
  }

  // All bytes of all owned weights and gradients.
  std::string Bits() {
    std::string bits;
    for (const Parameter* p : Owned()) {
      bits.append(static_cast<char*>(p->weight.data), p->weight.bytes());
      bits.append(static_cast<char*>(p->gradient.data), p->gradient.bytes());
    }
    return bits;
  }

 private:
  double MicroBatchStep(int64_t step, int64_t m, Keep keep) {
    const MicroBatchShape shape{kSizes[m], kLength};
    const Model& model = stages_[0].shape.model;
    MicroBatch mb{.shape = shape, .seed = 11, .step = step, .micro_batch = m};
    mb.loss_scale = 1.0f / (3 * kLength);
    std::vector<int32_t> ids(shape.tokens()), targets(shape.tokens());
    for (int64_t i = 0; i < shape.tokens(); ++i) {
      ids[i] = static_cast<int32_t>((i * 7 + m * 5 + step) % model.vocabulary);
      targets[i] = static_cast<int32_t>((i * 11 + m + step * 3) % model.vocabulary);
    }
    double loss = 0;
    mb.targets = targets.data();
    mb.loss = &loss;

    std::vector<std::vector<float>> boundaries;
    std::vector<std::vector<Line>> kept;
    for (size_t k = 0; k < stages_.size(); ++k) {
      boundaries.emplace_back(shape.tokens() * model.width);
      kept.emplace_back(WorkingSetBytes(stages_[k].shape) / sizeof(Line));
      stages_[k].model->Forward(mb, Input(ids, boundaries, k), boundaries[k].data(),
                                keep == Keep::kAll ? kept[k].data() : nullptr);
    }
    std::vector<float> dy, dx;
    for (size_t k = stages_.size(); k-- > 0;) {
      StageModel& stage = *stages_[k].model;
      const void* input = Input(ids, boundaries, k);
      if (keep == Keep::kBoundary) stage.Recompute(mb, input, kept[k].data());
      dx.assign(shape.tokens() * model.width, 0);
      stage.Backward(mb, input, kept[k].data(), dy.empty() ? nullptr : dy.data(),
                     k == 0 ? nullptr : dx.data());
      dy.swap(dx);
    }
    return loss;
  }

  static const void* Input(const std::vector<int32_t>& ids,
                           const std::vector<std::vector<float>>& boundaries, size_t k) {
    return k == 0 ? static_cast<const void*>(ids.data()) : boundaries[k - 1].data();
  }

  void Tie() {
    Parameter& borrowed = stages_.back().model->parameters().back();
    if (!borrowed.borrowed) return;
    Parameter& owner = stages_.front().model->parameters().front();
    ops_->Add(owner.gradient.f32(), borrowed.gradient.f32(), owner.gradient.f32(),
              owner.gradient.elements());
  }
  void SendTiedWeight() {
    Parameter& borrowed = stages_.back().model->parameters().back();
    if (!borrowed.borrowed || stages_.size() == 1) return;
    const Tensor& weight = stages_.front().model->parameters().front().weight;
    std::memcpy(borrowed.weight.data, weight.data, weight.bytes());
  }

  std::unique_ptr<Ops> ops_;
  std::vector<Stage> stages_;
};

const std::vector<std::vector<int64_t>>& Cuts() {
  static const auto* cuts = new std::vector<std::vector<int64_t>>{
      {0, 4}, {0, 2, 4}, {0, 1, 4}, {0, 3, 4}, {0, 1, 3, 4}, {0, 1, 2, 3, 4}};
  return *cuts;
}

TEST(StageModel, TrainsToTheSameBitsHoweverItIsCutAndWhateverIsRecomputed) {
  for (const Model& model : {Gpt2(), Llama()}) {
    std::vector<double> losses;
    std::string bits;
    for (const auto& cuts : Cuts()) {
      for (Keep keep : {Keep::kAll, Keep::kBoundary}) {
        const std::string what =
            absl::StrCat(model.family == ModelFamily::kGpt2 ? "gpt2" : "llama", " cut at ",
                         absl::StrJoin(cuts, ","), keep == Keep::kAll ? " kept" : " recomputed");
        Pipeline pipeline(model, cuts);
        std::vector<double> got;
        for (int64_t step = 1; step <= 3; ++step) got.push_back(pipeline.Step(step, keep));
        if (losses.empty()) losses = got, bits = pipeline.Bits();
        EXPECT_EQ(got, losses) << what;
        EXPECT_TRUE(pipeline.Bits() == bits) << what;
      }
    }
    EXPECT_NE(losses[0], losses[2]);
    EXPECT_NEAR(losses[0] / (3 * kLength), std::log(31), 0.5);
  }
}

TEST(StageModel, RecomputeKeepsWhatForwardKept) {
  for (const Model& model : {Gpt2(), Llama()}) {
    Pipeline pipeline(model, {0, 3, 4});
    Stage& stage = pipeline.stages()[0];
    MicroBatch mb{.shape = {2, kLength}, .seed = 3, .step = 5, .micro_batch = 2};
    std::vector<int32_t> ids(mb.shape.tokens());
    std::iota(ids.begin(), ids.end(), 1);
    std::vector<float> output(mb.shape.tokens() * model.width);
    const std::vector<Line> zero(WorkingSetBytes(stage.shape) / sizeof(Line), Line{});
    std::vector<Line> forward = zero, again = zero;
    stage.model->Forward(mb, ids.data(), output.data(), forward.data());
    stage.model->Recompute(mb, ids.data(), again.data());
    EXPECT_EQ(std::memcmp(forward.data(), again.data(), zero.size() * sizeof(Line)), 0);
    EXPECT_NE(std::memcmp(forward.data(), zero.data(), zero.size() * sizeof(Line)), 0);
    // Another micro-batch has other masks.
    mb.micro_batch = 3;
    stage.model->Recompute(mb, ids.data(), again.data());
    EXPECT_NE(std::memcmp(forward.data(), again.data(), zero.size() * sizeof(Line)), 0);
  }
}

TEST(StageModel, CarvesWhatThePlanPredictsAndStaysInside) {
  for (const Model& model : {Gpt2(), Llama()}) {
    for (const auto& cuts : Cuts()) {
      Pipeline pipeline(model, cuts);
      std::vector<Tensor> guards;
      for (Stage& stage : pipeline.stages()) {
        const StageBytes plan = StageMemory(stage.shape, {});
        EXPECT_EQ(stage.arena->in_use(MemoryKind::kWeights), plan.weights);
        EXPECT_EQ(stage.arena->in_use(MemoryKind::kGradients), plan.gradients);
        EXPECT_EQ(stage.arena->in_use(MemoryKind::kWorkspace), plan.workspace);
        // What is carved next lies right behind the workspace.
        guards.push_back(
            stage.arena->Carve(MemoryKind::kWorkspace, "guard", ElementType::kFloat32, {4096})
                .value());
      }
      pipeline.Step(1, Keep::kAll);
      pipeline.Step(2, Keep::kBoundary);
      for (const Tensor& guard : guards)
        EXPECT_EQ(SquaredNormOf(pipeline.ops(), guard.f32(), 4096), 0);
    }
  }
}

TEST(StageModel, ATieInOneStageSharesTheWeightAndNotTheGradient) {
  Pipeline whole(Gpt2(), {0, 4});
  auto& parameters = whole.stages()[0].model->parameters();
  EXPECT_TRUE(parameters.back().borrowed);
  EXPECT_EQ(parameters.back().weight.data, parameters.front().weight.data);
  EXPECT_NE(parameters.back().gradient.data, parameters.front().gradient.data);
  Pipeline cut(Gpt2(), {0, 2, 4});
  const Parameter& owner = cut.stages()[0].model->parameters().front();
  const Parameter& borrowed = cut.stages()[1].model->parameters().back();
  EXPECT_TRUE(borrowed.borrowed);
  EXPECT_EQ(std::memcmp(owner.weight.data, borrowed.weight.data, owner.weight.bytes()), 0);
}

TEST(StageModel, InitialisesAsTheSpecsSay) {
  Model model = Gpt2();
  model.width = 64, model.heads = 4, model.head_size = 16, model.mlp_width = 256;
  Pipeline pipeline(model, {0, 2, 4});
  for (const Parameter* p : pipeline.Owned()) {
    const int64_t n = p->weight.elements();
    const double mean_square = SquaredNormOf(pipeline.ops(), p->weight.f32(), n) / n;
    const double expected = p->spec.init == Init::kNormal ? p->spec.init_std * p->spec.init_std
                            : p->spec.init == Init::kOne  ? 1
                                                          : 0;
    EXPECT_NEAR(mean_square, expected, 0.15 * expected) << p->spec.name;
  }
}

TEST(StageModel, LogitsGiveTheLossOfTheirToken) {
  for (const Model& model : {Gpt2(), Llama()}) {
    Pipeline pipeline(model, {0, 4});
    StageModel& stage = *pipeline.stages()[0].model;
    MicroBatch mb{.shape = {1, kLength}, .training = false};
    std::vector<int32_t> ids(kLength), targets(kLength);
    std::iota(ids.begin(), ids.end(), 3);
    std::iota(targets.begin(), targets.end(), 4);
    mb.targets = targets.data();
    double loss = 0, sum = 0;
    mb.loss = &loss;
    stage.Forward(mb, ids.data(), nullptr, nullptr);
    for (int64_t position = 0; position < kLength; ++position) {
      std::vector<float> logits(model.vocabulary);
      stage.Logits(mb, ids.data(), position, logits.data());
      pipeline.ops().CrossEntropy(logits.data(), &targets[position], &sum, 1, model.vocabulary);
    }
    EXPECT_NEAR(sum / loss, 1, 1e-6);
  }
}

TEST(StageModel, ShowsEachOutputAndEachInputGradient) {
  Pipeline pipeline(Llama(), {0, 2, 4});
  std::vector<std::string> names;
  for (Stage& stage : pipeline.stages()) {
    stage.model->Observe([&](std::string_view name, const Tensor&) { names.emplace_back(name); });
  }
  pipeline.Step(1, Keep::kBoundary);
  names.resize(6);
  EXPECT_THAT(
      names,
      ElementsAre("micro-batch 0 layer 0 output", "micro-batch 0 layer 1 output",
                  "micro-batch 0 layer 2 output", "micro-batch 0 layer 3 input gradient",
                  "micro-batch 0 layer 2 input gradient", "micro-batch 0 layer 1 input gradient"));
}

TEST(StageModel, NamesTheTensorThatDoesNotFit) {
  const std::unique_ptr<Ops> ops = CreateCpuOps(1);
  StageShape shape;
  shape.model = Gpt2();
  shape.layers = BuildLayers(shape.model);
  shape.largest = {1, kLength};
  const auto arena = Arena::Create(16 << 10).value();
  const auto model = StageModel::Create(shape, arena.get(), ops.get());
  ASSERT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("transformer."));
}

}  // namespace
}  // namespace headrace
