#include <cmath>
#include <limits>
#include <vector>

#include "worker/backend/cuda/attention.h"
#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels.h"

namespace headrace::cuda {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

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

class CudaOpsImpl final : public CudaOps {
 public:
  CudaOpsImpl(Precision precision, Gemm* gemm, Scratch scratch, cudaStream_t stream)
      : bf16_(precision == Precision::kBfloat16), gemm_(gemm), scratch_(scratch), stream_(stream) {}

  const std::string& error() const override { return error_; }

  void Linear(const float* x, const float* w, const float* bias, float* y, int64_t n, int64_t in,
              int64_t out) override {
    GemmShape shape{.m = n, .n = out, .k = in, .transpose_b = true};
    shape.epilogue = bias != nullptr ? Epilogue::kBias : Epilogue::kNone;
    Product("Linear", shape, x, w, y, bias);
  }
  void LinearBackwardInput(const float* dy, const float* w, float* dx, int64_t n, int64_t in,
                           int64_t out, bool accumulate) override {
    Product("LinearBackwardInput", {.m = n, .n = in, .k = out, .accumulate = accumulate}, dy, w, dx,
            nullptr);
  }
  void LinearBackwardWeight(const float* dy, const float* x, float* dw, float* dbias, int64_t n,
                            int64_t in, int64_t out) override {
    Product("LinearBackwardWeight",
            {.m = out, .n = in, .k = n, .transpose_a = true, .accumulate = true}, dy, x, dw,
            nullptr);
    if (dbias == nullptr) return;
    ScratchCarver carver(scratch_);
    float* sums = carver.Take<float>(ColumnSumsScratchBytes(n, out, 1) / 4);
    Run("BiasGradient", carver, [&] { return BiasGradient(dy, dbias, n, out, sums, stream_); });
  }

  void Embedding(const int32_t* ids, const float* wte, const float* wpe, float* y, int64_t n,
                 int64_t length, int64_t width) override {
    Run("Embedding", [&] { return cuda::Embedding(ids, wte, wpe, y, n, length, width, stream_); });
  }
  void EmbeddingBackward(const int32_t* ids, const float* dy, float* dwte, float* dwpe, int64_t n,
                         int64_t length, int64_t width) override {
    Run("EmbeddingBackward",
        [&] { return cuda::EmbeddingBackward(ids, dy, dwte, dwpe, n, length, width, stream_); });
  }

  void LayerNorm(const float* x, const float* gain, const float* bias, float* y, float* mean,
                 float* rstd, int64_t n, int64_t width, float epsilon) override {
    Run("LayerNorm", [&] {
      return cuda::LayerNorm<float>(x, nullptr, nullptr, gain, bias, y, mean, rstd, n, width,
                                    epsilon, stream_);
    });
  }
  void LayerNormBackward(const float* dy, const float* x, const float* gain, const float* mean,
                         const float* rstd, float* dx, float* dgain, float* dbias, int64_t n,
                         int64_t width, bool accumulate) override {
    ScratchCarver carver(scratch_);
    float* sums = carver.Take<float>(ColumnSumsScratchBytes(n, width, 2) / 4);
    Run("LayerNormBackward", carver, [&] {
      return cuda::LayerNormBackward<float>(dy, x, gain, mean, rstd, accumulate ? dx : nullptr, dx,
                                            dgain, dbias, n, width, sums, stream_);
    });
  }
  void RmsNorm(const float* x, const float* gain, float* y, float* rstd, int64_t n, int64_t width,
               float epsilon) override {
    Run("RmsNorm", [&] {
      return cuda::RmsNorm<float>(x, nullptr, nullptr, gain, y, rstd, n, width, epsilon, stream_);
    });
  }
  void RmsNormBackward(const float* dy, const float* x, const float* gain, const float* rstd,
                       float* dx, float* dgain, int64_t n, int64_t width,
                       bool accumulate) override {
    ScratchCarver carver(scratch_);
    float* sums = carver.Take<float>(ColumnSumsScratchBytes(n, width, 1) / 4);
    Run("RmsNormBackward", carver, [&] {
      return cuda::RmsNormBackward<float>(dy, x, gain, rstd, accumulate ? dx : nullptr, dx, dgain,
                                          n, width, sums, stream_);
    });
  }

  void Gelu(const float* x, float* y, int64_t count) override {
    Run("Gelu", [&] { return cuda::Gelu(x, y, count, stream_); });
  }
  void GeluBackward(const float* dy, const float* x, float* dx, int64_t count) override {
    Run("GeluBackward", [&] { return cuda::GeluBackward(dy, x, dx, count, stream_); });
  }
  void SwiGlu(const float* gate_up, float* y, int64_t n, int64_t width) override {
    Run("SwiGlu", [&] { return cuda::SwiGlu(gate_up, y, n, width, stream_); });
  }
  void SwiGluBackward(const float* dy, const float* gate_up, float* dgate_up, int64_t n,
                      int64_t width) override {
    Run("SwiGluBackward",
        [&] { return cuda::SwiGluBackward(dy, gate_up, dgate_up, n, width, stream_); });
  }

  // In double on the host, as the CPU backend: once a stage, so its wait does not matter.
  void RopeTable(float* cos, float* sin, int64_t length, int64_t size, double theta) override {
    const int64_t half = size / 2;
    std::vector<float> tables[2];
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(t) *
            std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(size));
        tables[0].push_back(static_cast<float>(std::cos(angle)));
        tables[1].push_back(static_cast<float>(std::sin(angle)));
      }
    }
    const size_t bytes = tables[0].size() * sizeof(float);
    Run("RopeTable", [&] {
      return cudaMemcpyAsync(cos, tables[0].data(), bytes, cudaMemcpyHostToDevice, stream_);
    });
    Run("RopeTable", [&] {
      return cudaMemcpyAsync(sin, tables[1].data(), bytes, cudaMemcpyHostToDevice, stream_);
    });
    Run("RopeTable", [&] { return cudaStreamSynchronize(stream_); });
  }
  void Rope(float* qkv, const float* cos, const float* sin, const AttentionShape& shape,
            bool inverse) override {
    Run("Rope", [&] { return cuda::Rope(qkv, cos, sin, shape, inverse, stream_); });
  }

  void Attention(const float* qkv, float* out, float* lse, const AttentionShape& shape,
                 float* workspace) override;
  void AttentionBackward(const float* dout, const float* qkv, const float* out, const float* lse,
                         float* dqkv, const AttentionShape& shape, float* workspace) override;

  void Add(const float* a, const float* b, float* y, int64_t count) override {
    Run("Add", [&] { return cuda::Add(a, b, y, count, stream_); });
  }
  void NarrowBf16(const float* x, uint16_t* y, int64_t count) override {
    Run("NarrowBf16", [&] { return cuda::NarrowBf16(x, y, count, stream_); });
  }
  void WidenBf16(const uint16_t* x, float* y, int64_t count) override {
    Run("WidenBf16", [&] { return cuda::WidenBf16(x, y, count, stream_); });
  }
  void Dropout(const float* x, float* y, int64_t count, float p,
               const RandomStream& mask) override {
    Run("Dropout", [&] { return cuda::Dropout(x, y, count, p, mask, stream_); });
  }

  double CrossEntropy(const float* logits, const int32_t* targets, int64_t n,
                      int64_t vocabulary) override {
    ScratchCarver carver(scratch_);
    double* losses = carver.Take<double>(n);
    double* sum = carver.Take<double>(1);
    Run("CrossEntropy", carver, [&] {
      // Without a gradient the logits are only read.
      return cuda::CrossEntropy(const_cast<float*>(logits), targets, losses, false, n, vocabulary,
                                0.0f, stream_);
    });
    Run("CrossEntropy", [&] { return SumInOrder(losses, sum, n, stream_); });
    return ReadBack("CrossEntropy", sum);
  }
  double CrossEntropyBackward(float* logits, const int32_t* targets, int64_t n, int64_t vocabulary,
                              float scale) override {
    ScratchCarver carver(scratch_);
    double* losses = carver.Take<double>(n);
    double* sum = carver.Take<double>(1);
    Run("CrossEntropyBackward", carver, [&] {
      return cuda::CrossEntropy(logits, targets, losses, true, n, vocabulary, scale, stream_);
    });
    Run("CrossEntropyBackward", [&] { return SumInOrder(losses, sum, n, stream_); });
    return ReadBack("CrossEntropyBackward", sum);
  }

  double SquaredNorm(const float* x, int64_t count) override {
    ScratchCarver carver(scratch_);
    double* partial = carver.Take<double>(SquaredNormScratchBytes(count) / 8);
    double* sum = carver.Take<double>(1);
    Run("SquaredNorm", carver, [&] { return cuda::SquaredNorm(x, count, sum, partial, stream_); });
    return ReadBack("SquaredNorm", sum);
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

  void AdamW(float* w, const float* g, float* m, float* v, int64_t count,
             const AdamWStep& step) override {
    const UpdatedTensor tensor{w, g, m, v, nullptr, count};
    Run("AdamW", [&] { return cuda::AdamW(&tensor, 1, step, stream_); });
  }
  void Sgd(float* w, const float* g, float* momentum, int64_t count, const SgdStep& step) override {
    const UpdatedTensor tensor{w, g, momentum, nullptr, nullptr, count};
    Run("Sgd", [&] { return cuda::Sgd(&tensor, 1, step, stream_); });
  }
  void RmsProp(float* w, const float* g, float* square, float* momentum, int64_t count,
               const RmsPropStep& step) override {
    const UpdatedTensor tensor{w, g, square, momentum, nullptr, count};
    Run("RmsProp", [&] { return cuda::RmsProp(&tensor, 1, step, stream_); });
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

  double ReadBack(const char* op, const double* value) {
    double read = kNotANumber;
    Run(op, [&] {
      return cudaMemcpyAsync(&read, value, sizeof(read), cudaMemcpyDeviceToHost, stream_);
    });
    Run(op, [&] { return cudaStreamSynchronize(stream_); });
    return error_.empty() ? read : kNotANumber;
  }

  // c = op(a) · op(b) and so on, with the inputs rounded first where the precision says so.
  void Product(const char* op, GemmShape shape, const float* a, const float* b, float* c,
               const float* bias) {
    if (shape.m == 0 || shape.n == 0) return;
    const void *left = a, *right = b;
    if (bf16_) {
      ScratchCarver carver(scratch_);
      uint16_t* narrow_a = carver.Take<uint16_t>(shape.m * shape.k);
      uint16_t* narrow_b = carver.Take<uint16_t>(shape.n * shape.k);
      Run(op, carver, [&] { return cuda::NarrowBf16(a, narrow_a, shape.m * shape.k, stream_); });
      Run(op, [&] { return cuda::NarrowBf16(b, narrow_b, shape.n * shape.k, stream_); });
      shape.in = GemmType::kBfloat16;
      left = narrow_a;
      right = narrow_b;
    }
    if (!error_.empty()) return;
    const std::string failure = gemm_->Run(shape, left, right, c, bias, nullptr, stream_);
    if (!failure.empty()) error_ = std::string(op) + ": " + failure;
  }

  const bool bf16_;
  Gemm* const gemm_;
  const Scratch scratch_;
  const cudaStream_t stream_;
  std::string error_;
};

// bfloat16 where there is a kernel for the head's size, else fp32, which serves any up to 128.
void CudaOpsImpl::Attention(const float* qkv, float* out, float* lse, const AttentionShape& shape,
                            float* /*workspace*/) {
  if (!bf16_ || !HasAttention<Bf16>(shape.size)) {
    return Run("Attention", [&] { return cuda::Attention(qkv, out, lse, shape, stream_); });
  }
  const int64_t n = shape.sequences * shape.length;
  const int64_t in = n * (shape.heads + 2 * shape.kv_heads) * shape.size;
  const int64_t produced = n * shape.heads * shape.size;
  ScratchCarver carver(scratch_);
  auto* narrow = carver.Take<uint16_t>(in);
  auto* narrow_out = carver.Take<uint16_t>(produced);
  Run("Attention", carver, [&] { return cuda::NarrowBf16(qkv, narrow, in, stream_); });
  Run("Attention", [&] {
    return cuda::Attention(reinterpret_cast<const Bf16*>(narrow),
                           reinterpret_cast<Bf16*>(narrow_out), lse, shape, stream_);
  });
  Run("Attention", [&] { return cuda::WidenBf16(narrow_out, out, produced, stream_); });
}

void CudaOpsImpl::AttentionBackward(const float* dout, const float* qkv, const float* out,
                                    const float* lse, float* dqkv, const AttentionShape& shape,
                                    float* /*workspace*/) {
  const int64_t n = shape.sequences * shape.length;
  ScratchCarver carver(scratch_);
  float* delta = carver.Take<float>(n * shape.heads);
  if (!bf16_ || !HasAttention<Bf16>(shape.size)) {
    return Run("AttentionBackward", carver, [&] {
      return cuda::AttentionBackward(dout, qkv, out, lse, dqkv, delta, shape, stream_);
    });
  }
  const int64_t in = n * (shape.heads + 2 * shape.kv_heads) * shape.size;
  const int64_t produced = n * shape.heads * shape.size;
  auto* narrow = carver.Take<uint16_t>(in);
  auto* narrow_dqkv = carver.Take<uint16_t>(in);
  auto* narrow_out = carver.Take<uint16_t>(produced);
  auto* narrow_dout = carver.Take<uint16_t>(produced);
  const char* const op = "AttentionBackward";
  Run(op, carver, [&] { return cuda::NarrowBf16(qkv, narrow, in, stream_); });
  Run(op, [&] { return cuda::NarrowBf16(out, narrow_out, produced, stream_); });
  Run(op, [&] { return cuda::NarrowBf16(dout, narrow_dout, produced, stream_); });
  Run(op, [&] {
    return cuda::AttentionBackward(reinterpret_cast<const Bf16*>(narrow_dout),
                                   reinterpret_cast<const Bf16*>(narrow),
                                   reinterpret_cast<const Bf16*>(narrow_out), lse,
                                   reinterpret_cast<Bf16*>(narrow_dqkv), delta, shape, stream_);
  });
  Run(op, [&] { return cuda::WidenBf16(narrow_dqkv, dqkv, in, stream_); });
}

}  // namespace

std::unique_ptr<CudaOps> CreateCudaOps(Precision precision, Gemm* gemm, Scratch scratch,
                                       cudaStream_t stream) {
  return std::make_unique<CudaOpsImpl>(precision, gemm, scratch, stream);
}

}  // namespace headrace::cuda
