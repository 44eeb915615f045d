// A whole training step of a small GPT and a small Llama, through the layers and the optimizer as
// the worker runs them, once on the CPU backend and once on the CUDA backend's host code under
// emulation: device memory from cudaMalloc, kernels and products on a stream that works only when
// waited for.
#include <cmath>
#include <functional>
#include <memory>

#include "gtest/gtest.h"
#include "plan/layer_spec.h"
#include "worker/backend/arena.h"
#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/layers/stage_model.h"
#include "worker/optimizer/optimizer.h"

namespace headrace {
namespace {

constexpr int64_t kLength = 13, kArenaBytes = 16 << 20, kScratchBytes = 4 << 20;
constexpr int64_t kSizes[] = {2, 1};  // sequences of each micro-batch
constexpr int64_t kSteps = 3;

Model Gpt2() {
  Model m;
  m.family = ModelFamily::kGpt2;
  m.layers = 2, m.width = 64, m.heads = 2, m.kv_heads = 2, m.head_size = 32;
  m.mlp_width = 132, m.context = 17, m.vocabulary = 97, m.tied = true;
  m.embedding_dropout = 0.1, m.attention_dropout = 0.2, m.residual_dropout = 0.3;
  return m;
}

Model Llama() {
  Model m;
  m.family = ModelFamily::kLlama;
  m.layers = 2, m.width = 64, m.heads = 2, m.kv_heads = 1, m.head_size = 32;
  m.mlp_width = 92, m.context = 17, m.vocabulary = 97;
  return m;
}

// Where a model is trained: its memory and its ops.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual Ops* ops() = 0;
  virtual Arena* arena() = 0;
  virtual void Write(void* to, const void* from, int64_t bytes) = 0;
  virtual void Read(void* to, const void* from, int64_t bytes) = 0;
};

class CpuMachine final : public Machine {
 public:
  Ops* ops() override { return ops_.get(); }
  Arena* arena() override { return arena_.get(); }
  void Write(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, bytes); }
  void Read(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, bytes); }

 private:
  std::unique_ptr<Ops> ops_ = CreateCpuOps(1);
  std::unique_ptr<Arena> arena_ = Arena::Create(kArenaBytes).value();
};

class CudaMachine final : public Machine {
 public:
  explicit CudaMachine(cuda::Precision precision) {
    cudaDeviceReset();
    emulation::options() = emulation::Options();
    emulation::options().lazy_streams = true;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&memory_, kArenaBytes), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&scratch_, kScratchBytes), cudaSuccess);
    cudaMemsetAsync(memory_, 0, kArenaBytes, stream_);
    arena_ = Arena::Over(memory_, kArenaBytes);
    gemm_ = cuda::CreateReferenceGemm();
    ops_ = cuda::CreateCudaOps(precision, gemm_.get(), {scratch_, kScratchBytes}, stream_);
  }
  ~CudaMachine() override {
    EXPECT_EQ(ops_->error(), "");
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess) << emulation::last_report();
    arena_.reset();
    cudaFree(memory_);
    cudaFree(scratch_);
    cudaStreamDestroy(stream_);
    emulation::options() = emulation::Options();
  }
  Ops* ops() override { return ops_.get(); }
  Arena* arena() override { return arena_.get(); }
  void Write(void* to, const void* from, int64_t bytes) override {
    cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_);
    cudaStreamSynchronize(stream_);
  }
  void Read(void* to, const void* from, int64_t bytes) override {
    cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_);
    cudaStreamSynchronize(stream_);
  }

 private:
  cudaStream_t stream_ = nullptr;
  void *memory_ = nullptr, *scratch_ = nullptr;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<cuda::Gemm> gemm_;
  std::unique_ptr<cuda::CudaOps> ops_;
};

struct Step {
  double loss = 0, squared_norm = 0;
  std::vector<float> gradients;
};

// The whole model as one stage, trained as the executor and the update do it.
class Training {
 public:
  Training(const Model& model, Machine* machine) : machine_(*machine) {
    if (machine->ops()->activation_type() == ElementType::kBfloat16) {
      shape_.device = DeviceKind::kCuda;
      shape_.precision = Precision::kBf16;
    }
    shape_.model = model;
    shape_.layers = BuildLayers(model);
    shape_.largest = {kSizes[0], kLength};
    model_ = StageModel::Create(shape_, machine->arena(), machine->ops()).value();
    model_->Initialise(7);
    training_.set_steps(kSteps);
    training_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
    training_.mutable_optimizer()->set_learning_rate(1e-3);
    training_.mutable_optimizer()->set_weight_decay(0.1);
    optimizer_ =
        Optimizer::Create(training_, &model_->parameters(), machine->arena(), machine->ops())
            .value();
    const int64_t tokens = kSizes[0] * kLength;
    ids_ = Carve(ElementType::kInt32, tokens);
    targets_ = Carve(ElementType::kInt32, tokens);
    number_ = Carve(ElementType::kFloat64, 1);
    kept_ = Carve(ElementType::kFloat32, WorkingSetBytes(shape_) / 4);
  }

  Step RunStep(int64_t step) {
    Step result;
    model_->ZeroGradients();
    for (int64_t m = 0; m < 2; ++m) result.loss += RunMicroBatch(step, m);
    JoinTie();
    for (const Parameter& p : model_->parameters()) {
      if (p.borrowed) continue;
      const int64_t count = p.gradient.elements();
      machine_.ops()->SquaredNorm(p.gradient.f32(), count, number_.f64());
      result.squared_norm += ReadNumber();
      result.gradients.resize(result.gradients.size() + static_cast<size_t>(count));
      machine_.Read(result.gradients.data() + result.gradients.size() - count, p.gradient.data,
                    p.gradient.bytes());
    }
    optimizer_->Step(step, std::min(1.0, 1 / (std::sqrt(result.squared_norm) + 1e-6)));
    return result;
  }

  std::vector<float> Weights() {
    std::vector<float> weights;
    for (const Parameter& p : model_->parameters()) {
      const auto old = weights.size();
      weights.resize(old + static_cast<size_t>(p.weight.elements()));
      machine_.Read(weights.data() + old, p.weight.data, p.weight.bytes());
    }
    return weights;
  }

 private:
  Tensor Carve(ElementType type, int64_t count) {
    return machine_.arena()->Carve(MemoryKind::kStash, "test", type, {count}).value();
  }

  double RunMicroBatch(int64_t step, int64_t m) {
    MicroBatch mb;
    mb.shape = {kSizes[m], kLength};
    mb.seed = 3, mb.step = step, mb.micro_batch = m;
    mb.targets = targets_.i32();
    mb.loss_scale = 1.0f / static_cast<float>((kSizes[0] + kSizes[1]) * kLength);
    std::vector<int32_t> ids(static_cast<size_t>(mb.shape.tokens())), targets = ids;
    for (size_t t = 0; t < ids.size(); ++t) {
      ids[t] = static_cast<int32_t>((t * 31 + static_cast<size_t>(step * 7 + m)) % 97);
      targets[t] = static_cast<int32_t>((t * 31 + static_cast<size_t>(step * 7 + m) + 31) % 97);
    }
    machine_.Write(ids_.data, ids.data(), mb.shape.tokens() * 4);
    machine_.Write(targets_.data, targets.data(), mb.shape.tokens() * 4);
    const double zero = 0;
    machine_.Write(number_.data, &zero, 8);
    mb.loss = number_.f64();
    model_->Forward(mb, ids_.data, nullptr, nullptr);  // keeps nothing, as GPipe does …
    model_->Recompute(mb, ids_.data, kept_.data);      // … and forms it again
    model_->Backward(mb, ids_.data, kept_.data, nullptr, nullptr);
    return ReadNumber();
  }

  double ReadNumber() {
    double number = 0;
    machine_.Read(&number, number_.data, 8);
    return number;
  }

  void JoinTie() {
    Parameter& last = model_->parameters().back();
    if (!last.borrowed) return;
    float* g = model_->parameters().front().gradient.f32();
    machine_.ops()->Add(g, last.gradient.f32(), g, last.gradient.elements());
  }

  Machine& machine_;
  StageShape shape_;
  v1::TrainingSpec training_;
  std::unique_ptr<StageModel> model_;
  std::unique_ptr<Optimizer> optimizer_;
  Tensor ids_, targets_, kept_;
  Tensor number_;  // a loss or a norm
};

// |a − b| relative to |b|, over all elements.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

struct Bounds {
  double loss, gradients, weights;
};

void ExpectTheCpusNumbers(const Model& model, cuda::Precision precision, const Bounds& bounds) {
  CpuMachine cpu;
  CudaMachine cuda(precision);
  Training on_cpu(model, &cpu), on_cuda(model, &cuda);
  EXPECT_LT(Distance(on_cuda.Weights(), on_cpu.Weights()), 1e-7) << "initial weights";
  for (int64_t step = 1; step <= kSteps; ++step) {
    const Step want = on_cpu.RunStep(step), got = on_cuda.RunStep(step);
    EXPECT_LT(std::abs(got.loss - want.loss) / want.loss, bounds.loss) << "loss of step " << step;
    EXPECT_LT(Distance(got.gradients, want.gradients), bounds.gradients) << "step " << step;
    EXPECT_NEAR(std::sqrt(got.squared_norm / want.squared_norm), 1, bounds.gradients);
  }
  EXPECT_LT(Distance(on_cuda.Weights(), on_cpu.Weights()), bounds.weights);
}

// fp32: sums of another order.
constexpr Bounds kFloat32 = {1e-5, 1e-4, 1e-4};
// bfloat16: inputs of products are off by up to 2^-9 of themselves.
constexpr Bounds kBfloat16 = {1e-3, 3e-2, 1e-2};

TEST(TrainingStep, OfAGptHasTheCpusNumbersInFp32) {
  ExpectTheCpusNumbers(Gpt2(), cuda::Precision::kFloat32, kFloat32);
}
TEST(TrainingStep, OfALlamaHasTheCpusNumbersInFp32) {
  ExpectTheCpusNumbers(Llama(), cuda::Precision::kFloat32, kFloat32);
}
TEST(TrainingStep, OfAGptHasTheCpusNumbersInBf16) {
  ExpectTheCpusNumbers(Gpt2(), cuda::Precision::kBfloat16, kBfloat16);
}
TEST(TrainingStep, OfALlamaHasTheCpusNumbersInBf16) {
  ExpectTheCpusNumbers(Llama(), cuda::Precision::kBfloat16, kBfloat16);
}

TEST(TrainingStep, GivesTheSameBitsTwiceInAnyOrderOfThreads) {
  std::vector<float> weights[2];
  for (std::vector<float>& w : weights) {
    CudaMachine machine(cuda::Precision::kBfloat16);
    if (&w == &weights[1]) emulation::options().order = emulation::Order::kRandom;
    Training training(Gpt2(), &machine);
    training.RunStep(1);
    w = training.Weights();
  }
  EXPECT_EQ(std::memcmp(weights[0].data(), weights[1].data(), weights[0].size() * 4), 0);
}

}  // namespace
}  // namespace headrace
