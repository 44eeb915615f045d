// "Nothing is allocated inside a step" (docs/architecture.md): counts what a step of each family
// takes with operator new. oneDNN's products take scratch memory with malloc, which is theirs.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "worker/layers/stage_model.h"
#include "worker/optimizer/optimizer.h"

namespace {

std::atomic<int64_t> num_allocations{0};

void* Allocate(size_t bytes, size_t alignment) {
  ++num_allocations;
  void* p = alignment > alignof(std::max_align_t)
                ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                : std::malloc(bytes > 0 ? bytes : 1);
  if (p == nullptr) std::abort();
  return p;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, 1); }
void* operator new[](size_t bytes) { return Allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace headrace {
namespace {

Model SmallModel(ModelFamily family) {
  Model m;
  m.family = family;
  m.layers = 2, m.width = 48, m.heads = 4, m.kv_heads = family == ModelFamily::kGpt2 ? 4 : 2;
  m.head_size = 12, m.mlp_width = 80, m.context = 70, m.vocabulary = 300, m.tied = true;
  m.attention_dropout = 0.1;
  if (family == ModelFamily::kGpt2) m.embedding_dropout = m.residual_dropout = 0.1;
  return m;
}

// One stage that is a whole model, and all that a step of it takes.
class Trainer {
 public:
  explicit Trainer(ModelFamily family) : ops_(CreateCpuOps(1)) {
    stage_.model = SmallModel(family);
    stage_.layers = BuildLayers(stage_.model);
    stage_.largest = {5, 70};  // more tokens than the head takes at once
    arena_ = Arena::Create(64 << 20).value();
    model_ = StageModel::Create(stage_, arena_.get(), ops_.get()).value();
    model_->Initialise(1);
    v1::TrainingSpec training;
    training.set_steps(9);
    training.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
    training.mutable_optimizer()->set_learning_rate(1e-3);
    optimizer_ =
        Optimizer::Create(training, &model_->parameters(), arena_.get(), ops_.get()).value();
    kept_ = arena_
                ->Carve(MemoryKind::kStash, "kept", ElementType::kFloat32,
                        {WorkingSetBytes(stage_) / 4})
                .value();
    ids_.resize(static_cast<size_t>(stage_.largest.tokens()));
    std::iota(ids_.begin(), ids_.end(), 0);
    for (int32_t& id : ids_) id %= 300;
  }

  double Step(int64_t step) {
    MicroBatch mb{.shape = stage_.largest, .step = step, .targets = ids_.data()};
    double loss = 0;
    mb.loss = &loss;
    mb.loss_scale = 1.0f / static_cast<float>(mb.shape.tokens());
    model_->ZeroGradients();
    model_->Forward(mb, ids_.data(), nullptr, kept_.data);
    model_->Backward(mb, ids_.data(), kept_.data, nullptr, nullptr);
    model_->Forward(mb, ids_.data(), nullptr, nullptr);
    model_->Recompute(mb, ids_.data(), kept_.data);
    model_->Backward(mb, ids_.data(), kept_.data, nullptr, nullptr);
    double norm = 0;
    for (const Parameter& p : model_->parameters()) {
      double squared = 0;
      ops_->SquaredNorm(p.gradient.f32(), p.gradient.elements(), &squared);
      norm += squared;
    }
    optimizer_->Step(step, norm > 0 ? 1 : 0);
    mb.training = false;
    model_->Forward(mb, ids_.data(), nullptr, nullptr);
    return loss;
  }

 private:
  std::unique_ptr<Ops> ops_;
  StageShape stage_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<StageModel> model_;
  std::unique_ptr<Optimizer> optimizer_;
  Tensor kept_;
  std::vector<int32_t> ids_;
};

TEST(Allocation, AStepTakesNothing) {
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    Trainer trainer(family);
    trainer.Step(1);
    const int64_t before = num_allocations;
    trainer.Step(2);
    EXPECT_EQ(num_allocations - before, 0) << (family == ModelFamily::kGpt2 ? "gpt2" : "llama");
  }
}

TEST(Allocation, IsCounted) {
  const int64_t before = num_allocations;
  delete new std::vector<int>(3);
  EXPECT_EQ(num_allocations - before, 2);
}

}  // namespace
}  // namespace headrace
