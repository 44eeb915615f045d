#include <chrono>
#include <cmath>

#include "worker/backend/cuda/attention.h"
#include "worker/backend/cuda/bounce.h"
#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels.h"

namespace headrace::cuda {
namespace {

constexpr std::chrono::seconds kTableTime(60);

int64_t AlignUp(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Pieces of the scratch for one op, one behind the other.
class ScratchCarver {
 public:
  explicit ScratchCarver(const Scratch& scratch) : scratch_(scratch) {}
  template <typename T>
  T* Take(int64_t count) {
    char* piece = static_cast<char*>(scratch_.data) + used_;
    used_ += AlignUp(count * static_cast<int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(piece);
  }
  int64_t used() const { return used_; }

 private:
  const Scratch& scratch_;
  int64_t used_ = 0;
};

// Activations as kernels take them.
template <typename T>
const T* In(ConstAct a) {
  return static_cast<const T*>(a.data());
}
template <typename T>
T* Out(Act a) {
  return static_cast<T*>(a.data());
}

class CudaOpsImpl final : public CudaOps {
 public:
  CudaOpsImpl(Precision precision, Gemm* gemm, Scratch scratch, cudaStream_t stream)
      : bf16_(precision == Precision::kBfloat16), gemm_(gemm), scratch_(scratch), stream_(stream) {}

  const std::string& error() const override { return error_; }
  ElementType activation_type() const override {
    return bf16_ ? ElementType::kBfloat16 : ElementType::kFloat32;
  }

  void Linear(ConstAct x, ConstWeight w, ConstWeight bias, Act y, int64_t n, int64_t in,
              int64_t out) override {
    GemmShape shape = Shape({.m = n, .n = out, .k = in, .transpose_b = true});
    shape.epilogue = bias.f32 != nullptr ? Epilogue::kBias : Epilogue::kNone;
    Product("Linear", shape, x, w, y, bias, nullptr);
  }
  void LinearAdd(ConstAct x, ConstWeight w, ConstWeight bias, ConstAct residual, Act y, int64_t n,
                 int64_t in, int64_t out) override {
    GemmShape shape = Shape({.m = n, .n = out, .k = in, .transpose_b = true});
    shape.epilogue = bias.f32 != nullptr ? Epilogue::kBiasAdd : Epilogue::kAdd;
    if (!gemm_->Has(shape)) return Ops::LinearAdd(x, w, bias, residual, y, n, in, out);
    Product("LinearAdd", shape, x, w, y, bias, const_cast<void*>(residual.data()));
  }
  void LinearGelu(ConstAct x, ConstWeight w, ConstWeight bias, Act pre, Act y, int64_t n,
                  int64_t in, int64_t out) override {
    GemmShape shape = Shape({.m = n, .n = out, .k = in, .transpose_b = true});
    shape.epilogue = Epilogue::kBiasGelu;
    if (bias.f32 == nullptr || !gemm_->Has(shape)) {
      return Ops::LinearGelu(x, w, bias, pre, y, n, in, out);
    }
    Product("LinearGelu", shape, x, w, y, bias, pre.data());
  }
  void LinearBackwardInput(ConstAct dy, ConstWeight w, Act dx, int64_t n, int64_t in, int64_t out,
                           bool accumulate) override {
    const GemmShape shape = Shape({.m = n, .n = in, .k = out, .accumulate = accumulate});
    Product("LinearBackwardInput", shape, dy, w, dx, nullptr, nullptr);
  }
  void LinearGeluBackwardInput(ConstAct dy, ConstWeight w, ConstAct pre, Act dpre, int64_t n,
                               int64_t in, int64_t out) override {
    GemmShape shape = Shape({.m = n, .n = in, .k = out});
    shape.epilogue = Epilogue::kGeluBackward;
    if (!gemm_->Has(shape)) {
      return Ops::LinearGeluBackwardInput(dy, w, pre, dpre, n, in, out);
    }
    Product("LinearGeluBackwardInput", shape, dy, w, dpre, nullptr, const_cast<void*>(pre.data()));
  }
  void LinearBackwardWeight(ConstAct dy, ConstAct x, float* dw, float* dbias, int64_t n, int64_t in,
                            int64_t out) override {
    GemmShape shape = Shape({.m = out, .n = in, .k = n, .transpose_a = true, .accumulate = true});
    shape.out = GemmType::kFloat32;
    Multiply("LinearBackwardWeight", shape, dy.data(), x.data(), dw, nullptr, nullptr);
    if (dbias == nullptr) return;
    ScratchCarver carver(scratch_);
    float* sums = carver.Take<float>(ColumnSumsScratchBytes(n, out, 1) / 4);
    Run("BiasGradient", carver, dy,
        [&]<typename T>() { return BiasGradient(In<T>(dy), dbias, n, out, sums, stream_); });
  }

  void Embedding(const int32_t* ids, const float* wte, const float* wpe, Act y, int64_t n,
                 int64_t length, int64_t width) override {
    Run("Embedding", y, [&]<typename T>() {
      return cuda::Embedding(ids, wte, wpe, Out<T>(y), n, length, width, stream_);
    });
  }
  void EmbeddingBackward(const int32_t* ids, ConstAct dy, float* dwte, float* dwpe, int64_t n,
                         int64_t length, int64_t width) override {
    Run("EmbeddingBackward", dy, [&]<typename T>() {
      return cuda::EmbeddingBackward(ids, In<T>(dy), dwte, dwpe, n, length, width, stream_);
    });
  }

  void LayerNorm(ConstAct x, const float* gain, const float* bias, Act y, float* mean, float* rstd,
                 int64_t n, int64_t width, float epsilon) override {
    Run("LayerNorm", x, [&]<typename T>() {
      return cuda::LayerNorm<T>(In<T>(x), nullptr, nullptr, gain, bias, Out<T>(y), mean, rstd, n,
                                width, epsilon, stream_);
    });
  }
  void AddLayerNorm(ConstAct x, ConstAct branch, Act sum, const float* gain, const float* bias,
                    Act y, float* mean, float* rstd, int64_t n, int64_t width,
                    float epsilon) override {
    Run("AddLayerNorm", x, [&]<typename T>() {
      return cuda::LayerNorm<T>(In<T>(x), In<T>(branch), Out<T>(sum), gain, bias, Out<T>(y), mean,
                                rstd, n, width, epsilon, stream_);
    });
  }
  void LayerNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* mean,
                         const float* rstd, ConstAct residual, Act dx, float* dgain, float* dbias,
                         int64_t n, int64_t width) override {
    ScratchCarver carver(scratch_);
    float* sums = carver.Take<float>(ColumnSumsScratchBytes(n, width, 2) / 4);
    Run("LayerNormBackward", carver, x, [&]<typename T>() {
      return cuda::LayerNormBackward<T>(In<T>(dy), In<T>(x), gain, mean, rstd, In<T>(residual),
                                        Out<T>(dx), dgain, dbias, n, width, sums, stream_);
    });
  }
  void RmsNorm(ConstAct x, const float* gain, Act y, float* rstd, int64_t n, int64_t width,
               float epsilon) override {
    Run("RmsNorm", x, [&]<typename T>() {
      return cuda::RmsNorm<T>(In<T>(x), nullptr, nullptr, gain, Out<T>(y), rstd, n, width, epsilon,
                              stream_);
    });
  }
  void RmsNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* rstd,
                       ConstAct residual, Act dx, float* dgain, int64_t n, int64_t width) override {
    ScratchCarver carver(scratch_);
    float* sums = carver.Take<float>(ColumnSumsScratchBytes(n, width, 1) / 4);
    Run("RmsNormBackward", carver, x, [&]<typename T>() {
      return cuda::RmsNormBackward<T>(In<T>(dy), In<T>(x), gain, rstd, In<T>(residual), Out<T>(dx),
                                      dgain, n, width, sums, stream_);
    });
  }

  void Gelu(ConstAct x, Act y, int64_t count) override {
    Run("Gelu", x, [&]<typename T>() { return cuda::Gelu(In<T>(x), Out<T>(y), count, stream_); });
  }
  void GeluBackward(ConstAct dy, ConstAct x, Act dx, int64_t count) override {
    Run("GeluBackward", x, [&]<typename T>() {
      return cuda::GeluBackward(In<T>(dy), In<T>(x), Out<T>(dx), count, stream_);
    });
  }
  void SwiGlu(ConstAct gate_up, Act y, int64_t n, int64_t width) override {
    Run("SwiGlu", y,
        [&]<typename T>() { return cuda::SwiGlu(In<T>(gate_up), Out<T>(y), n, width, stream_); });
  }
  void SwiGluBackward(ConstAct dy, ConstAct gate_up, Act dgate_up, int64_t n,
                      int64_t width) override {
    Run("SwiGluBackward", dy, [&]<typename T>() {
      return cuda::SwiGluBackward(In<T>(dy), In<T>(gate_up), Out<T>(dgate_up), n, width, stream_);
    });
  }

  // In double on the host, as the CPU backend: once a stage, so that memory and a wait for it do
  // not matter. Pinned, for the runtime waits for copies of other memory without a deadline.
  void RopeTable(float* cos, float* sin, int64_t length, int64_t size, double theta) override {
    const int64_t half = size / 2, elements = length * half;
    const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
    void* pinned = nullptr;
    Run("RopeTable", [&] { return cudaMallocHost(&pinned, 2 * bytes); });
    if (pinned == nullptr) return;
    float* const tables[2] = {static_cast<float*>(pinned), static_cast<float*>(pinned) + elements};
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(t) *
            std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(size));
        tables[0][t * half + i] = static_cast<float>(std::cos(angle));
        tables[1][t * half + i] = static_cast<float>(std::sin(angle));
      }
    }
    Run("RopeTable",
        [&] { return cudaMemcpyAsync(cos, tables[0], bytes, cudaMemcpyHostToDevice, stream_); });
    Run("RopeTable",
        [&] { return cudaMemcpyAsync(sin, tables[1], bytes, cudaMemcpyHostToDevice, stream_); });
    cudaError_t state = cudaSuccess;
    Run("RopeTable", [&] {
      return state = Poll([this] { return cudaStreamQuery(stream_); },
                          std::chrono::steady_clock::now() + kTableTime);
    });
    // What a copy may still read is left behind.
    if (state != cudaErrorNotReady) cudaFreeHost(pinned);
  }
  void Rope(Act qkv, const float* cos, const float* sin, const AttentionShape& shape,
            bool inverse) override {
    Run("Rope", qkv,
        [&]<typename T>() { return cuda::Rope(Out<T>(qkv), cos, sin, shape, inverse, stream_); });
  }

  void Attention(ConstAct qkv, Act out, float* lse, const AttentionShape& shape,
                 float* workspace) override;
  void AttentionBackward(ConstAct dout, ConstAct qkv, ConstAct out, const float* lse, Act dqkv,
                         const AttentionShape& shape, float* workspace) override;

  void Add(ConstAct a, ConstAct b, Act y, int64_t count) override {
    Run("Add", y,
        [&]<typename T>() { return cuda::Add(In<T>(a), In<T>(b), Out<T>(y), count, stream_); });
  }
  void NarrowBf16(const float* x, uint16_t* y, int64_t count) override {
    Run("NarrowBf16", [&] { return cuda::NarrowBf16(x, y, count, stream_); });
  }
  void WidenBf16(const uint16_t* x, float* y, int64_t count) override {
    Run("WidenBf16", [&] { return cuda::WidenBf16(x, y, count, stream_); });
  }
  void Dropout(ConstAct x, Act y, int64_t count, float p, const RandomStream& mask) override {
    Run("Dropout", x,
        [&]<typename T>() { return cuda::Dropout(In<T>(x), Out<T>(y), count, p, mask, stream_); });
  }

  // Without a gradient the logits are only read.
  void CrossEntropy(ConstAct logits, const int32_t* targets, double* loss, int64_t n,
                    int64_t vocabulary) override {
    AddLosses("CrossEntropy", {const_cast<void*>(logits.data()), logits.type()}, targets, loss,
              false, n, vocabulary, 0.0f);
  }
  void CrossEntropyBackward(Act logits, const int32_t* targets, double* loss, int64_t n,
                            int64_t vocabulary, float scale) override {
    AddLosses("CrossEntropyBackward", logits, targets, loss, true, n, vocabulary, scale);
  }

  void SquaredNorms(std::span<const std::span<const float>> tensors, double* sums) override {
    for (const std::span<const float>& x : tensors) {
      const auto count = static_cast<int64_t>(x.size());
      ScratchCarver carver(scratch_);
      double* partial = carver.Take<double>(SquaredNormScratchBytes(count) / 8);
      Run("SquaredNorms", carver,
          [&] { return cuda::SquaredNorm(x.data(), count, sums, partial, stream_); });
      ++sums;
    }
  }
  void Zero(float* x, int64_t count) override {
    Run("Zero",
        [&] { return cudaMemsetAsync(x, 0, static_cast<size_t>(count) * sizeof(float), stream_); });
  }
  void Copy(const float* x, float* y, int64_t count) override {
    Run("Copy", [&] {
      return cudaMemcpyAsync(y, x, static_cast<size_t>(count) * sizeof(float),
                             cudaMemcpyDeviceToDevice, stream_);
    });
  }
  void FillNormal(float* x, int64_t count, float std, const RandomStream& stream) override {
    Run("FillNormal", [&] { return cuda::FillNormal(x, count, std, stream, stream_); });
  }
  void Fill(float* x, int64_t count, float value) override {
    Run("Fill", [&] { return cuda::Fill(x, count, value, stream_); });
  }

  void AdamW(std::span<const UpdatedTensor> tensors, const AdamWStep& step) override {
    Run("AdamW", [&] { return cuda::AdamW(tensors, step, stream_); });
  }
  void Sgd(std::span<const UpdatedTensor> tensors, const SgdStep& step) override {
    Run("Sgd", [&] { return cuda::Sgd(tensors, step, stream_); });
  }
  void RmsProp(std::span<const UpdatedTensor> tensors, const RmsPropStep& step) override {
    Run("RmsProp", [&] { return cuda::RmsProp(tensors, step, stream_); });
  }

 private:
  // Runs `launch` unless something failed before.
  template <typename Launch>
  void Run(const char* op, const Launch& launch) {
    if (!error_.empty()) return;
    const cudaError_t error = launch();
    if (error == cudaSuccess) return;
    error_ = std::string(op) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
  }
  template <typename Launch>
  void Run(const char* op, const ScratchCarver& carver, const Launch& launch) {
    if (error_.empty() && carver.used() > scratch_.bytes) {
      error_ = std::string(op) + ": needs " + std::to_string(carver.used()) +
               " bytes of scratch memory, has " + std::to_string(scratch_.bytes);
    }
    Run(op, launch);
  }
  // launch.operator()<T>() with the T of `typed`.
  template <typename Launch>
  void Run(const char* op, const ScratchCarver& carver, ConstAct typed, const Launch& launch) {
    Run(op, carver, [&] {
      return typed.type() == ElementType::kBfloat16 ? launch.template operator()<Bf16>()
                                                    : launch.template operator()<float>();
    });
  }
  template <typename Launch>
  void Run(const char* op, ConstAct typed, const Launch& launch) {
    Run(op, ScratchCarver(scratch_), typed, launch);
  }

  GemmShape Shape(GemmShape shape) const {
    shape.in = shape.out = bf16_ ? GemmType::kBfloat16 : GemmType::kFloat32;
    return shape;
  }

  // As products take it: in bf16 the rounded copy, or where the stage keeps none, one made here.
  const void* Operand(const char* op, ConstWeight w, int64_t count, ScratchCarver* carver) {
    if (!bf16_ || w.f32 == nullptr) return w.f32;
    if (w.bf16 != nullptr) return w.bf16;
    auto* narrow = carver->Take<uint16_t>(count);
    Run(op, *carver, [&] { return cuda::NarrowBf16(w.f32, narrow, count, stream_); });
    return narrow;
  }

  // c = a · op(w) and so on.
  void Product(const char* op, const GemmShape& shape, ConstAct a, ConstWeight w, Act c,
               ConstWeight bias, void* aux) {
    ScratchCarver carver(scratch_);
    const void* right = Operand(op, w, shape.n * shape.k, &carver);
    const void* added = Operand(op, bias, shape.n, &carver);
    Multiply(op, shape, a.data(), right, c.data(), added, aux);
  }
  void Multiply(const char* op, const GemmShape& shape, const void* a, const void* b, void* c,
                const void* bias, void* aux) {
    if (shape.m == 0 || shape.n == 0 || !error_.empty()) return;
    const std::string failure = gemm_->Run(shape, a, b, c, bias, aux, stream_);
    if (!failure.empty()) error_ = std::string(op) + ": " + failure;
  }

  void AddLosses(const char* op, Act logits, const int32_t* targets, double* loss, bool gradient,
                 int64_t n, int64_t vocabulary, float scale) {
    ScratchCarver carver(scratch_);
    double* losses = carver.Take<double>(n);
    Run(op, carver, logits, [&]<typename T>() {
      return cuda::CrossEntropy(Out<T>(logits), targets, losses, gradient, n, vocabulary, scale,
                                stream_);
    });
    Run(op, [&] { return AddInOrder(losses, loss, n, stream_); });
  }

  const bool bf16_;
  Gemm* const gemm_;
  const Scratch scratch_;
  const cudaStream_t stream_;
  std::string error_;
};

// Tensor cores where they serve the head's size, else fp32, which serves any up to 128: bfloat16 is
// then widened for it.
void CudaOpsImpl::Attention(ConstAct qkv, Act out, float* lse, const AttentionShape& shape,
                            float* /*workspace*/) {
  const char* const op = "Attention";
  if (!bf16_) {
    return Run(op, [&] { return cuda::Attention(qkv.f32(), out.f32(), lse, shape, stream_); });
  }
  if (HasAttention<Bf16>(shape.size)) {
    return Run(op,
               [&] { return cuda::Attention(In<Bf16>(qkv), Out<Bf16>(out), lse, shape, stream_); });
  }
  const int64_t n = shape.sequences * shape.length;
  const int64_t in = n * (shape.heads + 2 * shape.kv_heads) * shape.size;
  const int64_t produced = n * shape.heads * shape.size;
  ScratchCarver carver(scratch_);
  auto* wide = carver.Take<float>(in);
  auto* wide_out = carver.Take<float>(produced);
  Run(op, carver, [&] { return cuda::WidenBf16(qkv.bf16(), wide, in, stream_); });
  Run(op, [&] { return cuda::Attention<float>(wide, wide_out, lse, shape, stream_); });
  Run(op, [&] { return cuda::NarrowBf16(wide_out, out.bf16(), produced, stream_); });
}

void CudaOpsImpl::AttentionBackward(ConstAct dout, ConstAct qkv, ConstAct out, const float* lse,
                                    Act dqkv, const AttentionShape& shape, float* /*workspace*/) {
  const char* const op = "AttentionBackward";
  const int64_t n = shape.sequences * shape.length;
  ScratchCarver carver(scratch_);
  float* delta = carver.Take<float>(n * shape.heads);
  if (!bf16_ || HasAttention<Bf16>(shape.size)) {
    return Run(op, carver, qkv, [&]<typename T>() {
      return cuda::AttentionBackward(In<T>(dout), In<T>(qkv), In<T>(out), lse, Out<T>(dqkv), delta,
                                     shape, stream_);
    });
  }
  const int64_t in = n * (shape.heads + 2 * shape.kv_heads) * shape.size;
  const int64_t produced = n * shape.heads * shape.size;
  auto* wide = carver.Take<float>(in);
  auto* wide_dqkv = carver.Take<float>(in);
  auto* wide_out = carver.Take<float>(produced);
  auto* wide_dout = carver.Take<float>(produced);
  Run(op, carver, [&] { return cuda::WidenBf16(qkv.bf16(), wide, in, stream_); });
  Run(op, [&] { return cuda::WidenBf16(out.bf16(), wide_out, produced, stream_); });
  Run(op, [&] { return cuda::WidenBf16(dout.bf16(), wide_dout, produced, stream_); });
  Run(op, [&] {
    return cuda::AttentionBackward<float>(wide_dout, wide, wide_out, lse, wide_dqkv, delta, shape,
                                          stream_);
  });
  Run(op, [&] { return cuda::NarrowBf16(wide_dqkv, dqkv.bf16(), in, stream_); });
}

}  // namespace

std::unique_ptr<CudaOps> CreateCudaOps(Precision precision, Gemm* gemm, Scratch scratch,
                                       cudaStream_t stream) {
  return std::make_unique<CudaOpsImpl>(precision, gemm, scratch, stream);
}

}  // namespace headrace::cuda
