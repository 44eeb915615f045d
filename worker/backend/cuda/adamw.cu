// As torch.optim.AdamW: decay first, then the moments, then the step.
#include <cmath>

#include "worker/backend/cuda/update.h"

namespace headrace::cuda {
namespace {

struct AdamWRule {
  float beta1, rest1, beta2, rest2, epsilon, decay, rate, inverse_root, scale;

  __host__ __device__ bool keeps_state() const { return true; }
  __host__ __device__ bool keeps_state2() const { return true; }
  __device__ float operator()(float w, float g, float& m, float& v) const {
    const float gradient = g * scale;
    m = beta1 * m + rest1 * gradient;
    v = beta2 * v + rest2 * gradient * gradient;
    return w * decay - rate * m / (sqrtf(v) * inverse_root + epsilon);
  }
};

}  // namespace

cudaError_t AdamW(std::span<const UpdatedTensor> tensors, const AdamWStep& step,
                  cudaStream_t stream) {
  AdamWRule rule;
  rule.beta1 = static_cast<float>(step.beta1);
  rule.rest1 = static_cast<float>(1.0 - step.beta1);
  rule.beta2 = static_cast<float>(step.beta2);
  rule.rest2 = static_cast<float>(1.0 - step.beta2);
  rule.epsilon = step.epsilon;
  rule.decay = static_cast<float>(1.0 - static_cast<double>(step.learning_rate) *
                                            static_cast<double>(step.weight_decay));
  rule.rate = step.learning_rate / step.bias_correction1;
  rule.inverse_root = 1.0f / std::sqrt(step.bias_correction2);
  rule.scale = step.gradient_scale;
  return UpdateAll(tensors, rule, stream);
}

}  // namespace headrace::cuda
