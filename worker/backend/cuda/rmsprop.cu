// As torch.optim.RMSprop, not centred: epsilon is added outside the root.
#include "worker/backend/cuda/update.h"

namespace headrace::cuda {
namespace {

struct RmsPropRule {
  float rate, decay, scale, alpha, rest, epsilon, momentum;

  __host__ __device__ bool keeps_state() const { return true; }
  __host__ __device__ bool keeps_state2() const { return momentum != 0.0f; }
  __device__ float operator()(float w, float g, float& square, float& buffer) const {
    const float gradient = g * scale + decay * w;
    square = alpha * square + rest * gradient * gradient;
    float change = gradient / (sqrtf(square) + epsilon);
    if (momentum != 0.0f) {
      change += momentum * buffer;
      buffer = change;
    }
    return w - rate * change;
  }
};

}  // namespace

cudaError_t RmsProp(std::span<const UpdatedTensor> tensors, const RmsPropStep& step,
                    cudaStream_t stream) {
  const RmsPropRule rule{step.learning_rate,
                         step.weight_decay,
                         step.gradient_scale,
                         static_cast<float>(step.alpha),
                         static_cast<float>(1.0 - step.alpha),
                         step.epsilon,
                         step.momentum};
  return UpdateAll(tensors, rule, stream);
}

}  // namespace headrace::cuda
