// What the CUDA backend launches: each function puts its kernels on `stream` and returns what CUDA
// says of the launch. The mathematics is that of worker/backend/ops.h.
//
// All pointers are device memory, dense and row-major, of any alignment their type allows; n is
// tokens of a micro-batch. T is float or Bf16: activations and their gradients. Gains, biases,
// statistics, parameter gradients, losses and everything inside a kernel are fp32, where not
// double. No function allocates, waits for the device or uses an atomic: every sum has an order
// that depends on shapes only, so the same inputs give the same bits. Nothing to do (a size of 0)
// is no error.
//
// `scratch`: device memory of the bytes named, aligned to 16; its contents mean nothing afterwards.
#pragma once

#include <cstdint>
#include <span>

#include "worker/backend/cuda/launch.h"
#include "worker/backend/cuda/pack.h"
#include "worker/backend/ops.h"

namespace headrace::cuda {

// embedding.cu. ids: int32 [n]. Gradients are fp32 and added to, token after token.
template <typename T>
cudaError_t Embedding(const int32_t* ids, const float* wte, const float* wpe, T* y, int64_t n,
                      int64_t length, int64_t width, cudaStream_t stream);
template <typename T>
cudaError_t EmbeddingBackward(const int32_t* ids, const T* dy, float* dwte, float* dwpe, int64_t n,
                              int64_t length, int64_t width, cudaStream_t stream);

// layer_norm.cu, rms_norm.cu. y = norm(x). With `branch`, x + branch is normalised instead and
// written to `sum` [n, width], rounded to T before it is: the residual stream and its norm in one
// pass.
template <typename T>
cudaError_t LayerNorm(const T* x, const T* branch, T* sum, const float* gain, const float* bias,
                      T* y, float* mean, float* rstd, int64_t n, int64_t width, float epsilon,
                      cudaStream_t stream);
template <typename T>
cudaError_t RmsNorm(const T* x, const T* branch, T* sum, const float* gain, T* y, float* rstd,
                    int64_t n, int64_t width, float epsilon, cudaStream_t stream);
// dx = (residual +) the norm's input gradient; `residual` may be null, or dx itself to accumulate.
// Adds to dgain and dbias. dx may be dy. scratch: NormScratchBytes.
template <typename T>
cudaError_t LayerNormBackward(const T* dy, const T* x, const float* gain, const float* mean,
                              const float* rstd, const T* residual, T* dx, float* dgain,
                              float* dbias, int64_t n, int64_t width, float* scratch,
                              cudaStream_t stream);
template <typename T>
cudaError_t RmsNormBackward(const T* dy, const T* x, const float* gain, const float* rstd,
                            const T* residual, T* dx, float* dgain, int64_t n, int64_t width,
                            float* scratch, cudaStream_t stream);

// bias_gradient.cu. dbias[width] += column sums of dy[n, width].
template <typename T>
cudaError_t BiasGradient(const T* dy, float* dbias, int64_t n, int64_t width, float* scratch,
                         cudaStream_t stream);
// Scratch of the three above: `sums` sums a column (layer norm 2, the others 1).
int64_t ColumnSumsScratchBytes(int64_t n, int64_t width, int sums);

// gelu.cu, swiglu.cu. As Ops; dx may be dy.
template <typename T>
cudaError_t Gelu(const T* x, T* y, int64_t count, cudaStream_t stream);
template <typename T>
cudaError_t GeluBackward(const T* dy, const T* x, T* dx, int64_t count, cudaStream_t stream);
template <typename T>
cudaError_t SwiGlu(const T* gate_up, T* y, int64_t n, int64_t width, cudaStream_t stream);
template <typename T>
cudaError_t SwiGluBackward(const T* dy, const T* gate_up, T* dgate_up, int64_t n, int64_t width,
                           cudaStream_t stream);

// rope.cu. Rotates q and k of qkv in place; tables fp32 [length, size / 2].
template <typename T>
cudaError_t Rope(T* qkv, const float* cos, const float* sin, const AttentionShape& shape,
                 bool inverse, cudaStream_t stream);

// dropout.cu. The masks of worker/backend/cpu/dropout.cc, bit for bit; y may be x.
template <typename T>
cudaError_t Dropout(const T* x, T* y, int64_t count, float p, const RandomStream& mask,
                    cudaStream_t stream);

// elementwise.cu. y may be a or b. Convert rounds to nearest, ties to even; NaN stays NaN, made
// quiet.
template <typename T>
cudaError_t Add(const T* a, const T* b, T* y, int64_t count, cudaStream_t stream);
cudaError_t Fill(float* x, int64_t count, float value, cudaStream_t stream);
cudaError_t NarrowBf16(const float* x, uint16_t* y, int64_t count, cudaStream_t stream);
cudaError_t WidenBf16(const uint16_t* x, float* y, int64_t count, cudaStream_t stream);

// cross_entropy.cu. losses[t] (double, [n]) = −log softmax(logits[t])[targets[t]]; with `gradient`,
// the logits become scale · (softmax − onehot) in the same launch. Either may be left out: losses
// null, gradient false.
template <typename T>
cudaError_t CrossEntropy(T* logits, const int32_t* targets, double* losses, bool gradient,
                         int64_t n, int64_t vocabulary, float scale, cudaStream_t stream);
// *sum = Σ values[0, count), in ascending order; AddInOrder: += of that.
cudaError_t SumInOrder(const double* values, double* sum, int64_t count, cudaStream_t stream);
cudaError_t AddInOrder(const double* values, double* sum, int64_t count, cudaStream_t stream);

// squared_norm.cu. *sum = Σ x² in double: blocks of 65,536 elements, then the blocks in ascending
// order. scratch: SquaredNormScratchBytes.
cudaError_t SquaredNorm(const float* x, int64_t count, double* sum, double* scratch,
                        cudaStream_t stream);
int64_t SquaredNormScratchBytes(int64_t count);

// fill_normal.cu. The draws of worker/backend/cpu/fill_normal.cc, rounded from double.
cudaError_t FillNormal(float* x, int64_t count, float std, const RandomStream& stream_of,
                       cudaStream_t stream);

// adamw.cu, sgd.cu, rmsprop.cu. Any number of tensors, kTensorsOfLaunch in each launch; states are
// AdamW: m, v. SGD: momentum (where momentum > 0). RMSProp: square, momentum (where > 0).
cudaError_t AdamW(std::span<const UpdatedTensor> tensors, const AdamWStep& step,
                  cudaStream_t stream);
cudaError_t Sgd(std::span<const UpdatedTensor> tensors, const SgdStep& step, cudaStream_t stream);
cudaError_t RmsProp(std::span<const UpdatedTensor> tensors, const RmsPropStep& step,
                    cudaStream_t stream);

}  // namespace headrace::cuda
