// An Ops that times another's: where a training step spends its time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "worker/backend/ops.h"

namespace headrace {

struct OpTime {
  int64_t calls = 0;
  double seconds = 0;
  double flops = 0;  // of matrix products and attention; 0 elsewhere
};

class TimedOps final : public Ops {
 public:
  // `ops` must outlive this.
  explicit TimedOps(Ops* ops) : ops_(*ops) {}

  // By name, since the last Clear.
  const std::map<std::string, OpTime>& times() const { return times_; }
  void Clear() { times_.clear(); }

  ElementType activation_type() const override { return ops_.activation_type(); }
  void Linear(ConstAct x, ConstWeight w, ConstWeight bias, Act y, int64_t n, int64_t in,
              int64_t out) override;
  void LinearBackwardInput(ConstAct dy, ConstWeight w, Act dx, int64_t n, int64_t in, int64_t out,
                           bool accumulate) override;
  void LinearBackwardWeight(ConstAct dy, ConstAct x, float* dw, float* dbias, int64_t n, int64_t in,
                            int64_t out) override;
  void Embedding(const int32_t* ids, const float* wte, const float* wpe, Act y, int64_t n,
                 int64_t length, int64_t width) override;
  void EmbeddingBackward(const int32_t* ids, ConstAct dy, float* dwte, float* dwpe, int64_t n,
                         int64_t length, int64_t width) override;
  void LayerNorm(ConstAct x, const float* gain, const float* bias, Act y, float* mean, float* rstd,
                 int64_t n, int64_t width, float epsilon) override;
  void LayerNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* mean,
                         const float* rstd, ConstAct residual, Act dx, float* dgain, float* dbias,
                         int64_t n, int64_t width) override;
  void RmsNorm(ConstAct x, const float* gain, Act y, float* rstd, int64_t n, int64_t width,
               float epsilon) override;
  void RmsNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* rstd,
                       ConstAct residual, Act dx, float* dgain, int64_t n, int64_t width) override;
  void Gelu(ConstAct x, Act y, int64_t count) override;
  void GeluBackward(ConstAct dy, ConstAct x, Act dx, int64_t count) override;
  void SwiGlu(ConstAct gate_up, Act y, int64_t n, int64_t width) override;
  void SwiGluBackward(ConstAct dy, ConstAct gate_up, Act dgate_up, int64_t n,
                      int64_t width) override;
  void RopeTable(float* cos, float* sin, int64_t length, int64_t size, double theta) override;
  void Rope(Act qkv, const float* cos, const float* sin, const AttentionShape& shape,
            bool inverse) override;
  void Attention(ConstAct qkv, Act out, float* lse, const AttentionShape& shape,
                 float* workspace) override;
  void AttentionBackward(ConstAct dout, ConstAct qkv, ConstAct out, const float* lse, Act dqkv,
                         const AttentionShape& shape, float* workspace) override;
  void Add(ConstAct a, ConstAct b, Act y, int64_t count) override;
  void Dropout(ConstAct x, Act y, int64_t count, float p, const RandomStream& mask) override;
  void NarrowBf16(const float* x, uint16_t* y, int64_t count) override;
  void WidenBf16(const uint16_t* x, float* y, int64_t count) override;
  void CrossEntropy(ConstAct logits, const int32_t* targets, double* loss, int64_t n,
                    int64_t vocabulary) override;
  void CrossEntropyBackward(Act logits, const int32_t* targets, double* loss, int64_t n,
                            int64_t vocabulary, float scale) override;
  void SquaredNorms(std::span<const std::span<const float>> tensors, double* sums) override;
  void Zero(float* x, int64_t count) override;
  void Copy(const float* x, float* y, int64_t count) override;
  void FillNormal(float* x, int64_t count, float std, const RandomStream& stream) override;
  void Fill(float* x, int64_t count, float value) override;
  void AdamW(std::span<const UpdatedTensor> tensors, const AdamWStep& step) override;
  void Sgd(std::span<const UpdatedTensor> tensors, const SgdStep& step) override;
  void RmsProp(std::span<const UpdatedTensor> tensors, const RmsPropStep& step) override;

 private:
  Ops& ops_;
  std::map<std::string, OpTime> times_;
};

}  // namespace headrace
