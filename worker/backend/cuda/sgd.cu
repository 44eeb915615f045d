// As torch.optim.SGD with dampening 0: decay joins the gradient, momentum remembers it.
#include "worker/backend/cuda/update.h"

namespace headrace::cuda {
namespace {

struct SgdRule {
  float rate, decay, scale, momentum;
  bool first, nesterov;

  __host__ __device__ bool keeps_state() const { return momentum != 0.0f; }
  __host__ __device__ bool keeps_state2() const { return false; }
  __device__ float operator()(float w, float g, float& buffer, float&) const {
    const float gradient = g * scale + decay * w;
    if (momentum == 0.0f) return w - rate * gradient;
    buffer = first ? gradient : momentum * buffer + gradient;
    return w - rate * (nesterov ? gradient + momentum * buffer : buffer);
  }
};

}  // namespace

cudaError_t Sgd(std::span<const UpdatedTensor> tensors, const SgdStep& step, cudaStream_t stream) {
  const SgdRule rule{step.learning_rate, step.weight_decay, step.gradient_scale,
                     step.momentum,      step.first,        step.nesterov};
  return UpdateAll(tensors, rule, stream);
}

}  // namespace headrace::cuda
