// The CPU backend. Each op is defined in the file of its family: linear.cc, attention.cc, ….
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "worker/backend/cpu/products.h"
#include "worker/backend/ops.h"

namespace headrace {

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, std::unique_ptr<const Products> products)
      : threads_(threads), products_(std::move(products)) {}

  // linear.cc
  void Linear(const float* x, const float* w, const float* bias, float* y, int64_t n, int64_t in,
              int64_t out) override;
  void LinearBackwardInput(const float* dy, const float* w, float* dx, int64_t n, int64_t in,
                           int64_t out, bool accumulate) override;
  void LinearBackwardWeight(const float* dy, const float* x, float* dw, float* dbias, int64_t n,
                            int64_t in, int64_t out) override;

  // embedding.cc
  void Embedding(const int32_t* ids, const float* wte, const float* wpe, float* y, int64_t n,
                 int64_t length, int64_t width) override;
  void EmbeddingBackward(const int32_t* ids, const float* dy, float* dwte, float* dwpe, int64_t n,
                         int64_t length, int64_t width) override;

  // layer_norm.cc
  void LayerNorm(const float* x, const float* gain, const float* bias, float* y, float* mean,
                 float* rstd, int64_t n, int64_t width, float epsilon) override;
  void LayerNormBackward(const float* dy, const float* x, const float* gain, const float* mean,
                         const float* rstd, float* dx, float* dgain, float* dbias, int64_t n,
                         int64_t width, bool accumulate) override;

  // rms_norm.cc
  void RmsNorm(const float* x, const float* gain, float* y, float* rstd, int64_t n, int64_t width,
               float epsilon) override;
  void RmsNormBackward(const float* dy, const float* x, const float* gain, const float* rstd,
                       float* dx, float* dgain, int64_t n, int64_t width, bool accumulate) override;

  // gelu.cc
  void Gelu(const float* x, float* y, int64_t count) override;
  void GeluBackward(const float* dy, const float* x, float* dx, int64_t count) override;

  // swiglu.cc
  void SwiGlu(const float* gate_up, float* y, int64_t n, int64_t width) override;
  void SwiGluBackward(const float* dy, const float* gate_up, float* dgate_up, int64_t n,
                      int64_t width) override;

  // rope.cc
  void RopeTable(float* cos, float* sin, int64_t length, int64_t size, double theta) override;
  void Rope(float* qkv, const float* cos, const float* sin, const AttentionShape& shape,
            bool inverse) override;

  // attention.cc
  void Attention(const float* qkv, float* out, float* lse, const AttentionShape& shape,
                 float* workspace) override;
  void AttentionBackward(const float* dout, const float* qkv, const float* out, const float* lse,
                         float* dqkv, const AttentionShape& shape, float* workspace) override;

  // elementwise.cc
  void Add(const float* a, const float* b, float* y, int64_t count) override;
  void Zero(float* x, int64_t count) override;
  void Copy(const float* x, float* y, int64_t count) override;
  void Fill(float* x, int64_t count, float value) override;

  // bf16.cc
  void NarrowBf16(const float* x, uint16_t* y, int64_t count) override;
  void WidenBf16(const uint16_t* x, float* y, int64_t count) override;

  // dropout.cc
  void Dropout(const float* x, float* y, int64_t count, float p, const RandomStream& mask) override;

  // cross_entropy.cc
  double CrossEntropy(const float* logits, const int32_t* targets, int64_t n,
                      int64_t vocabulary) override;
  double CrossEntropyBackward(float* logits, const int32_t* targets, int64_t n, int64_t vocabulary,
                              float scale) override;

  // norm.cc
  double SquaredNorm(const float* x, int64_t count) override;

  // fill_normal.cc
  void FillNormal(float* x, int64_t count, float std, const RandomStream& stream) override;

  // adamw.cc, sgd.cc, rmsprop.cc
  void AdamW(float* w, const float* g, float* m, float* v, int64_t count,
             const AdamWStep& step) override;
  void Sgd(float* w, const float* g, float* momentum, int64_t count, const SgdStep& step) override;
  void RmsProp(float* w, const float* g, float* square, float* momentum, int64_t count,
               const RmsPropStep& step) override;

 private:
  const int threads_;
  const std::unique_ptr<const Products> products_;  // of the linear layers
};

}  // namespace headrace
