#include "worker/sim/sim_ops.h"

#include <algorithm>

namespace headrace {
namespace {

class SimOps final : public Ops {
 public:
  ElementType activation_type() const override { return ElementType::kFloat32; }
  void Linear(ConstAct, ConstWeight, ConstWeight, Act, int64_t, int64_t, int64_t) override {}
  void LinearBackwardInput(ConstAct, ConstWeight, Act, int64_t, int64_t, int64_t, bool) override {}
  void LinearBackwardWeight(ConstAct, ConstAct, float*, float*, int64_t, int64_t,
                            int64_t) override {}
  void Embedding(const int32_t*, const float*, const float*, Act, int64_t, int64_t,
                 int64_t) override {}
  void EmbeddingBackward(const int32_t*, ConstAct, float*, float*, int64_t, int64_t,
                         int64_t) override {}
  void LayerNorm(ConstAct, const float*, const float*, Act, float*, float*, int64_t, int64_t,
                 float) override {}
  void LayerNormBackward(ConstAct, ConstAct, const float*, const float*, const float*, ConstAct,
                         Act, float*, float*, int64_t, int64_t) override {}
  void RmsNorm(ConstAct, const float*, Act, float*, int64_t, int64_t, float) override {}
  void RmsNormBackward(ConstAct, ConstAct, const float*, const float*, ConstAct, Act, float*,
                       int64_t, int64_t) override {}
  void Gelu(ConstAct, Act, int64_t) override {}
  void GeluBackward(ConstAct, ConstAct, Act, int64_t) override {}
  void SwiGlu(ConstAct, Act, int64_t, int64_t) override {}
  void SwiGluBackward(ConstAct, ConstAct, Act, int64_t, int64_t) override {}
  void RopeTable(float*, float*, int64_t, int64_t, double) override {}
  void Rope(Act, const float*, const float*, const AttentionShape&, bool) override {}
  void Attention(ConstAct, Act, float*, const AttentionShape&, float*) override {}
  void AttentionBackward(ConstAct, ConstAct, ConstAct, const float*, Act, const AttentionShape&,
                         float*) override {}
  void Add(ConstAct, ConstAct, Act, int64_t) override {}
  void Dropout(ConstAct, Act, int64_t, float, const RandomStream&) override {}
  void CrossEntropy(ConstAct, const int32_t*, double*, int64_t, int64_t) override {}
  void CrossEntropyBackward(Act, const int32_t*, double*, int64_t, int64_t, float) override {}
  void NarrowBf16(const float*, uint16_t*, int64_t) override {}
  void WidenBf16(const uint16_t*, float*, int64_t) override {}
  void SquaredNorms(std::span<const std::span<const float>> tensors, double* sums) override {
    std::fill_n(sums, tensors.size(), 0.0);
  }
  void Zero(float*, int64_t) override {}
  void Copy(const float*, float*, int64_t) override {}
  void FillNormal(float*, int64_t, float, const RandomStream&) override {}
  void Fill(float*, int64_t, float) override {}
  void AdamW(std::span<const UpdatedTensor>, const AdamWStep&) override {}
  void Sgd(std::span<const UpdatedTensor>, const SgdStep&) override {}
  void RmsProp(std::span<const UpdatedTensor>, const RmsPropStep&) override {}
};

}  // namespace

std::unique_ptr<Ops> CreateSimOps() { return std::make_unique<SimOps>(); }

}  // namespace headrace
