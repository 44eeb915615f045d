// What a backend computes. Layers are written once against this; no layer knows a backend.
//
// All tensors are dense row-major in the backend's memory; n is tokens of a micro-batch.
// Activations and their gradients (Act) are of the backend's activation_type, all else that is a
// float* is fp32, whatever the precision. Inside an op, and in sums, everything is at least fp32.
//
// No op waits: what it computes lies in the backend's memory when the backend has got to it, sums
// of losses and norms too, which somebody reads once, when a step ends. Results are a pure function
// of the inputs: every reduction has a fixed order that depends on shapes only, so that recompute,
// another K or another schedule repeats every bit. Ops whose name ends in Backward *add* to
// parameter gradients and *set* input gradients, except where an `accumulate` says otherwise. Not
// thread-safe: one compute thread owns an Ops.
//
// "The inputs" include shapes and threads: a matrix product of other rows or threads may differ in
// the last bit. Buffers start at kAlignment, but for views into one (rows of a block, a parameter
// joined to another): those at a multiple of 4 bytes. Inputs and outputs are different buffers
// unless an op allows it. NaN goes through every op.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/philox.h"
#include "plan/precision.h"
#include "worker/backend/act.h"

namespace headrace {

// q, k, v of one micro-batch as columns of one packed row-major buffer, as the fused projection
// leaves them: row t holds [heads * size | kv_heads * size | kv_heads * size] floats.
struct AttentionShape {
  int64_t sequences = 0, length = 0;
  int64_t heads = 0, kv_heads = 0, size = 0;  // size: of one head
  float dropout = 0;                          // of probabilities; 0 in evaluation
  RandomStream mask;                          // kDropout
};

// A parameter of an update.
struct UpdatedTensor {
  float* w = nullptr;
  const float* g = nullptr;
  float *state = nullptr, *state2 = nullptr;  // the optimizer's, null where it keeps none
  uint16_t* half = nullptr;  // null, or where the new weight goes rounded to bfloat16 as well
  int64_t count = 0;
};
// What all parameters of one update have in common.
struct AdamWStep {
  float learning_rate = 0;
  double beta1 = 0, beta2 = 0;  // 1 − beta of a rounded beta would be off by 1e-5
  float epsilon = 0, weight_decay = 0;
  float bias_correction1 = 1, bias_correction2 = 1;  // 1 − beta^step
  float gradient_scale = 1;                          // clipping
};
struct SgdStep {
  float learning_rate = 0, weight_decay = 0, momentum = 0, gradient_scale = 1;
  bool nesterov = false, first = false;  // first: the buffer starts as the gradient, as in PyTorch
};
struct RmsPropStep {
  float learning_rate = 0, weight_decay = 0;
  double alpha = 0;
  float epsilon = 0, momentum = 0, gradient_scale = 1;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual ElementType activation_type() const = 0;  // kFloat32 or kBfloat16

  // Linear layers. Inputs of their products are rounded to the ops' precision, sums are fp32, and
  // so are the gradients of weights and biases.
  // y[n,out] = x[n,in] · w[out,in]ᵀ (+ bias[out], may be null)
  virtual void Linear(ConstAct x, ConstWeight w, ConstWeight bias, Act y, int64_t n, int64_t in,
                      int64_t out) = 0;
  // y = residual + Linear(…); residual is not y.
  virtual void LinearAdd(ConstAct x, ConstWeight w, ConstWeight bias, ConstAct residual, Act y,
                         int64_t n, int64_t in, int64_t out);
  // pre = Linear(…), y = Gelu(pre)
  virtual void LinearGelu(ConstAct x, ConstWeight w, ConstWeight bias, Act pre, Act y, int64_t n,
                          int64_t in, int64_t out);
  // dx[n,in] = dy[n,out] · w[out,in]; accumulate: +=
  virtual void LinearBackwardInput(ConstAct dy, ConstWeight w, Act dx, int64_t n, int64_t in,
                                   int64_t out, bool accumulate) = 0;
  // The gradient of pre[n,in], where dy is that of Linear(Gelu(pre)):
  // dpre = (dy · w) ⊙ gelu'(pre)
  virtual void LinearGeluBackwardInput(ConstAct dy, ConstWeight w, ConstAct pre, Act dpre,
                                       int64_t n, int64_t in, int64_t out);
  // dw[out,in] += dyᵀ · x; dbias[out] += column sums of dy (null: none)
  virtual void LinearBackwardWeight(ConstAct dy, ConstAct x, float* dw, float* dbias, int64_t n,
                                    int64_t in, int64_t out) = 0;

  // y[t] = wte[ids[t]] + wpe[t % length] (wpe may be null). ids are < vocabulary: the caller
  // checked.
  virtual void Embedding(const int32_t* ids, const float* wte, const float* wpe, Act y, int64_t n,
                         int64_t length, int64_t width) = 0;
  virtual void EmbeddingBackward(const int32_t* ids, ConstAct dy, float* dwte, float* dwpe,
                                 int64_t n, int64_t length, int64_t width) = 0;

  // y = gain * (x − mean) * rstd + bias; mean, rstd: [n] saved.
  virtual void LayerNorm(ConstAct x, const float* gain, const float* bias, Act y, float* mean,
                         float* rstd, int64_t n, int64_t width, float epsilon) = 0;
  // sum = x + branch, y = LayerNorm(sum): the residual stream and its norm. sum may be branch.
  virtual void AddLayerNorm(ConstAct x, ConstAct branch, Act sum, const float* gain,
                            const float* bias, Act y, float* mean, float* rstd, int64_t n,
                            int64_t width, float epsilon);
  // dx = residual + the norm's input gradient; residual: the gradient that passes the norm by,
  // null for none, dx itself to add to it.
  virtual void LayerNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* mean,
                                 const float* rstd, ConstAct residual, Act dx, float* dgain,
                                 float* dbias, int64_t n, int64_t width) = 0;
  // y = gain * x * rstd, rstd = 1/sqrt(mean(x²) + epsilon): [n] saved.
  virtual void RmsNorm(ConstAct x, const float* gain, Act y, float* rstd, int64_t n, int64_t width,
                       float epsilon) = 0;
  virtual void RmsNormBackward(ConstAct dy, ConstAct x, const float* gain, const float* rstd,
                               ConstAct residual, Act dx, float* dgain, int64_t n,
                               int64_t width) = 0;

  // GELU with tanh (GPT-2's gelu_new). count elements; dx may be dy.
  virtual void Gelu(ConstAct x, Act y, int64_t count) = 0;
  virtual void GeluBackward(ConstAct dy, ConstAct x, Act dx, int64_t count) = 0;
  // Rows of gate_up are [gate(width) | up(width)]; y[n,width] = silu(gate) * up.
  virtual void SwiGlu(ConstAct gate_up, Act y, int64_t n, int64_t width) = 0;
  virtual void SwiGluBackward(ConstAct dy, ConstAct gate_up, Act dgate_up, int64_t n,
                              int64_t width) = 0;

  // cos, sin: [length, size/2] for rotary positions, theta^(−2i/size), computed in double.
  virtual void RopeTable(float* cos, float* sin, int64_t length, int64_t size, double theta) = 0;
  // Rotates q and k in place (Hugging Face's half-split layout); inverse: the gradient's rotation.
  virtual void Rope(Act qkv, const float* cos, const float* sin, const AttentionShape& shape,
                    bool inverse) = 0;

  // Causal attention: out[n, heads*size]; lse[sequences, heads, length] saved (log-sum-exp per
  // row). Scaled by 1/sqrt(size). workspace: AttentionWorkspaceBytes.
  virtual void Attention(ConstAct qkv, Act out, float* lse, const AttentionShape& shape,
                         float* workspace) = 0;
  // Recomputes the probabilities from lse; sets dqkv (packed as qkv).
  virtual void AttentionBackward(ConstAct dout, ConstAct qkv, ConstAct out, const float* lse,
                                 Act dqkv, const AttentionShape& shape, float* workspace) = 0;

  // y may be a or b. All three of one type: activations, or gradients of parameters in fp32.
  virtual void Add(ConstAct a, ConstAct b, Act y, int64_t count) = 0;
  // y = x as bfloat16, the upper 16 bits of a float, rounded to nearest, ties to even. What is too
  // large becomes infinite; NaN stays NaN, with its quiet bit set.
  virtual void NarrowBf16(const float* x, uint16_t* y, int64_t count) = 0;
  virtual void WidenBf16(const uint16_t* x, float* y, int64_t count) = 0;  // exact
  // y = x * mask / (1 − p), mask from the stream by element index; y may be x. Its own backward.
  virtual void Dropout(ConstAct x, Act y, int64_t count, float p, const RandomStream& mask) = 0;

  // Rows of logits[n, vocabulary] against targets[n] (memory of the backend): adds
  // Σ −log softmax(logits)[target], which is summed in double in row order, to *loss.
  virtual void CrossEntropy(ConstAct logits, const int32_t* targets, double* loss, int64_t n,
                            int64_t vocabulary) = 0;
  // In place: logits → scale * (softmax(logits) − onehot(target)). Adds to *loss as CrossEntropy of
  // what the logits were, the same bits.
  virtual void CrossEntropyBackward(Act logits, const int32_t* targets, double* loss, int64_t n,
                                    int64_t vocabulary, float scale) = 0;

  // sums[i] = Σ x² of tensors[i] in double, in fixed blocks of each.
  virtual void SquaredNorms(std::span<const std::span<const float>> tensors, double* sums) = 0;
  void SquaredNorm(const float* x, int64_t count, double* sum) {
    const std::span<const float> tensor(x, static_cast<size_t>(count));
    SquaredNorms({&tensor, 1}, sum);
  }
  virtual void Zero(float* x, int64_t count) = 0;
  virtual void Copy(const float* x, float* y, int64_t count) = 0;
  // Draws N(0, std²) by element index from the stream.
  virtual void FillNormal(float* x, int64_t count, float std, const RandomStream& stream) = 0;
  virtual void Fill(float* x, int64_t count, float value) = 0;

  // Updates of any number of parameters. state, state2: m, v of AdamW; SGD's momentum (where it is
  // not 0); RMSProp's mean square and momentum (where it is not 0).
  virtual void AdamW(std::span<const UpdatedTensor> tensors, const AdamWStep& step) = 0;
  virtual void Sgd(std::span<const UpdatedTensor> tensors, const SgdStep& step) = 0;
  virtual void RmsProp(std::span<const UpdatedTensor> tensors, const RmsPropStep& step) = 0;
};

// What a backend need not fuse: the same in steps.
inline void Ops::LinearAdd(ConstAct x, ConstWeight w, ConstWeight bias, ConstAct residual, Act y,
                           int64_t n, int64_t in, int64_t out) {
  assert(!(residual == y));
  Linear(x, w, bias, y, n, in, out);
  Add(residual, y, y, n * out);
}
inline void Ops::LinearGelu(ConstAct x, ConstWeight w, ConstWeight bias, Act pre, Act y, int64_t n,
                            int64_t in, int64_t out) {
  Linear(x, w, bias, pre, n, in, out);
  Gelu(pre, y, n * out);
}
inline void Ops::LinearGeluBackwardInput(ConstAct dy, ConstWeight w, ConstAct pre, Act dpre,
                                         int64_t n, int64_t in, int64_t out) {
  LinearBackwardInput(dy, w, dpre, n, in, out, false);
  GeluBackward(dpre, pre, dpre, n * in);
}
inline void Ops::AddLayerNorm(ConstAct x, ConstAct branch, Act sum, const float* gain,
                              const float* bias, Act y, float* mean, float* rstd, int64_t n,
                              int64_t width, float epsilon) {
  Add(x, branch, sum, n * width);
  LayerNorm(sum, gain, bias, y, mean, rstd, n, width, epsilon);
}

// Temporaries of Attention and AttentionBackward, for `threads` threads; AttentionScratchBytes in
// plan/layer_spec.cc counts the same bytes.
int64_t AttentionWorkspaceBytes(const AttentionShape& shape, int threads);

// Whether this processor multiplies bf16 by itself (avx512_bf16).
bool CpuMultipliesBf16();

// The CPU backend. `threads` OpenMP threads, set for the calling thread: create it on the thread
// that computes. The linear layers multiply in `precision`; kBf16 only where CpuMultipliesBf16.
// `panels`: PanelBytes(precision, threads) bytes at kAlignment that outlive the ops; null for
// kFp32.
std::unique_ptr<Ops> CreateCpuOps(int threads, Precision precision = Precision::kFp32,
                                  void* panels = nullptr);

}  // namespace headrace
