#include "worker/sim/sim_ops.h"

namespace headrace {
namespace {

class SimOps final : public Ops {
 public:
  void Linear(const float*, const float*, const float*, float*, int64_t, int64_t,
              int64_t) override {}
  void LinearBackwardInput(const float*, const float*, float*, int64_t, int64_t, int64_t,
                           bool) override {}
  void LinearBackwardWeight(const float*, const float*, float*, float*, int64_t, int64_t,
                            int64_t) override {}
  void Embedding(const int32_t*, const float*, const float*, float*, int64_t, int64_t,
                 int64_t) override {}
  void EmbeddingBackward(const int32_t*, const float*, float*, float*, int64_t, int64_t,
                         int64_t) override {}
  void LayerNorm(const float*, const float*, const float*, float*, float*, float*, int64_t, int64_t,
                 float) override {}
  void LayerNormBackward(const float*, const float*, const float*, const float*, const float*,
                         float*, float*, float*, int64_t, int64_t, bool) override {}
  void RmsNorm(const float*, const float*, float*, float*, int64_t, int64_t, float) override {}
  void RmsNormBackward(const float*, const float*, const float*, const float*, float*, float*,
                       int64_t, int64_t, bool) override {}
  void Gelu(const float*, float*, int64_t) override {}
  void GeluBackward(const float*, const float*, float*, int64_t) override {}
  void SwiGlu(const float*, float*, int64_t, int64_t) override {}
  void SwiGluBackward(const float*, const float*, float*, int64_t, int64_t) override {}
  void RopeTable(float*, float*, int64_t, int64_t, double) override {}
  void Rope(float*, const float*, const float*, const AttentionShape&, bool) override {}
  void Attention(const float*, float*, float*, const AttentionShape&, float*) override {}
  void AttentionBackward(const float*, const float*, const float*, const float*, float*,
                         const AttentionShape&, float*) override {}
  void Add(const float*, const float*, float*, int64_t) override {}
  void Dropout(const float*, float*, int64_t, float, const RandomStream&) override {}
  double CrossEntropy(const float*, const int32_t*, int64_t, int64_t) override { return 0; }
  double CrossEntropyBackward(float*, const int32_t*, int64_t, int64_t, float) override {
    return 0;
  }
  void NarrowBf16(const float*, uint16_t*, int64_t) override {}
  void WidenBf16(const uint16_t*, float*, int64_t) override {}
  double SquaredNorm(const float*, int64_t) override { return 0; }
  void Zero(float*, int64_t) override {}
  void Copy(const float*, float*, int64_t) override {}
  void FillNormal(float*, int64_t, float, const RandomStream&) override {}
  void Fill(float*, int64_t, float) override {}
  void AdamW(float*, const float*, float*, float*, int64_t, const AdamWStep&) override {}
  void Sgd(float*, const float*, float*, int64_t, const SgdStep&) override {}
  void RmsProp(float*, const float*, float*, float*, int64_t, const RmsPropStep&) override {}
};

}  // namespace

std::unique_ptr<Ops> CreateSimOps() { return std::make_unique<SimOps>(); }

}  // namespace headrace
