// What a backend computes. Layers are written once against this; no layer knows a backend.
//
// All tensors are dense row-major fp32 in the backend's memory unless said otherwise; n is tokens
// of a micro-batch. Results are a pure function of the inputs: every reduction has a fixed order
// that depends on shapes only, so that recompute, another K or another schedule repeats every bit.
// Ops whose name ends in Backward *add* to parameter gradients and *set* input gradients, except
// where an `accumulate` says otherwise. Not thread-safe: one compute thread owns an Ops.
//
// "The inputs" include shapes and threads: a matrix product of other rows or threads may differ in
// the last bit. Buffers start at kAlignment, but for views into one (rows of a block, a parameter
// joined to another): those at a multiple of 4 bytes. Inputs and outputs are different buffers
// unless an op allows it. NaN goes through every op.
#pragma once

#include <cstdint>
#include <memory>

#include "common/philox.h"
#include "plan/precision.h"

namespace headrace {

// q, k, v of one micro-batch as columns of one packed row-major buffer, as the fused projection
// leaves them: row t holds [heads * size | kv_heads * size | kv_heads * size] floats.
struct AttentionShape {
  int64_t sequences = 0, length = 0;
  int64_t heads = 0, kv_heads = 0, size = 0;  // size: of one head
  float dropout = 0;                          // of probabilities; 0 in evaluation
  RandomStream mask;                          // kDropout
};

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

  // Linear layers. Inputs of their products are rounded to the ops' precision, sums are fp32, and
  // so is the bias's gradient.
  // y[n,out] = x[n,in] · w[out,in]ᵀ (+ bias[out], may be null)
  virtual void Linear(const float* x, const float* w, const float* bias, float* y, int64_t n,
                      int64_t in, int64_t out) = 0;
  // dx[n,in] = dy[n,out] · w[out,in]; accumulate: +=
  virtual void LinearBackwardInput(const float* dy, const float* w, float* dx, int64_t n,
                                   int64_t in, int64_t out, bool accumulate) = 0;
  // dw[out,in] += dyᵀ · x; dbias[out] += column sums of dy (null: none)
  virtual void LinearBackwardWeight(const float* dy, const float* x, float* dw, float* dbias,
                                    int64_t n, int64_t in, int64_t out) = 0;

  // y[t] = wte[ids[t]] + wpe[t % length] (wpe may be null). ids are < vocabulary: the caller
  // checked.
  virtual void Embedding(const int32_t* ids, const float* wte, const float* wpe, float* y,
                         int64_t n, int64_t length, int64_t width) = 0;
  virtual void EmbeddingBackward(const int32_t* ids, const float* dy, float* dwte, float* dwpe,
                                 int64_t n, int64_t length, int64_t width) = 0;

  // y = gain * (x − mean) * rstd + bias; mean, rstd: [n] saved.
  virtual void LayerNorm(const float* x, const float* gain, const float* bias, float* y,
                         float* mean, float* rstd, int64_t n, int64_t width, float epsilon) = 0;
  // accumulate: dx += (the residual branch), else dx =
  virtual void LayerNormBackward(const float* dy, const float* x, const float* gain,
                                 const float* mean, const float* rstd, float* dx, float* dgain,
                                 float* dbias, int64_t n, int64_t width, bool accumulate) = 0;
  // y = gain * x * rstd, rstd = 1/sqrt(mean(x²) + epsilon): [n] saved.
  virtual void RmsNorm(const float* x, const float* gain, float* y, float* rstd, int64_t n,
                       int64_t width, float epsilon) = 0;
  virtual void RmsNormBackward(const float* dy, const float* x, const float* gain,
                               const float* rstd, float* dx, float* dgain, int64_t n, int64_t width,
                               bool accumulate) = 0;

  // GELU with tanh (GPT-2's gelu_new). count elements; dx may be dy.
  virtual void Gelu(const float* x, float* y, int64_t count) = 0;
  virtual void GeluBackward(const float* dy, const float* x, float* dx, int64_t count) = 0;
  // Rows of gate_up are [gate(width) | up(width)]; y[n,width] = silu(gate) * up.
  virtual void SwiGlu(const float* gate_up, float* y, int64_t n, int64_t width) = 0;
  virtual void SwiGluBackward(const float* dy, const float* gate_up, float* dgate_up, int64_t n,
                              int64_t width) = 0;

  // cos, sin: [length, size/2] for rotary positions, theta^(−2i/size), computed in double.
  virtual void RopeTable(float* cos, float* sin, int64_t length, int64_t size, double theta) = 0;
  // Rotates q and k in place (Hugging Face's half-split layout); inverse: the gradient's rotation.
  virtual void Rope(float* qkv, const float* cos, const float* sin, const AttentionShape& shape,
                    bool inverse) = 0;

  // Causal attention: out[n, heads*size]; lse[sequences, heads, length] saved (log-sum-exp per
  // row). Scaled by 1/sqrt(size). workspace: AttentionWorkspaceBytes.
  virtual void Attention(const float* qkv, float* out, float* lse, const AttentionShape& shape,
                         float* workspace) = 0;
  // Recomputes the probabilities from lse; sets dqkv (packed as qkv).
  virtual void AttentionBackward(const float* dout, const float* qkv, const float* out,
                                 const float* lse, float* dqkv, const AttentionShape& shape,
                                 float* workspace) = 0;

  virtual void Add(const float* a, const float* b, float* y, int64_t count) = 0;  // y may be a or b
  // y = x as bfloat16, the upper 16 bits of a float, rounded to nearest, ties to even. What is too
  // large becomes infinite; NaN stays NaN, with its quiet bit set.
  virtual void NarrowBf16(const float* x, uint16_t* y, int64_t count) = 0;
  virtual void WidenBf16(const uint16_t* x, float* y, int64_t count) = 0;  // exact
  // y = x * mask / (1 − p), mask from the stream by element index; y may be x. Its own backward.
  virtual void Dropout(const float* x, float* y, int64_t count, float p,
                       const RandomStream& mask) = 0;

  // Rows of logits[n, vocabulary] against targets[n]: returns Σ −log softmax(logits)[target],
  // summed in double in row order.
  virtual double CrossEntropy(const float* logits, const int32_t* targets, int64_t n,
                              int64_t vocabulary) = 0;
  // In place: logits → scale * (softmax(logits) − onehot(target)). Returns CrossEntropy of what the
  // logits were, the same bits.
  virtual double CrossEntropyBackward(float* logits, const int32_t* targets, int64_t n,
                                      int64_t vocabulary, float scale) = 0;

  // Σ x² in double, fixed blocks.
  virtual double SquaredNorm(const float* x, int64_t count) = 0;
  virtual void Zero(float* x, int64_t count) = 0;
  virtual void Copy(const float* x, float* y, int64_t count) = 0;
  // Draws N(0, std²) by element index from the stream.
  virtual void FillNormal(float* x, int64_t count, float std, const RandomStream& stream) = 0;
  virtual void Fill(float* x, int64_t count, float value) = 0;

  virtual void AdamW(float* w, const float* g, float* m, float* v, int64_t count,
                     const AdamWStep& step) = 0;
  virtual void Sgd(float* w, const float* g, float* momentum, int64_t count,
                   const SgdStep& step) = 0;
  virtual void RmsProp(float* w, const float* g, float* square, float* momentum, int64_t count,
                       const RmsPropStep& step) = 0;
};

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
