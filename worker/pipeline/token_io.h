// The tokens that go into a stage's layers, and the logits that come out: numbers that the host
// makes or reads itself. Where tensors lie in host memory they are written and read in place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/compute_device.h"
#include "worker/pipeline/stage_job.h"

namespace headrace {

// Owned by the compute thread.
class TokenIo {
 public:
  using Fill = std::function<void(int32_t* tokens)>;

  // Carves CudaTransferBytes (plan/cuda_memory.h) where tensors do not lie in host memory. Both must
  // outlive this.
  //   RESOURCE_EXHAUSTED  as Arena::Carve
  static absl::StatusOr<std::unique_ptr<TokenIo>> Create(const StageJob& job,
                                                         ComputeDevice* device);

  // Writes `count` token ids, as `fill` makes them, to `ids`, memory of the device.
  absl::Status Write(void* ids, int64_t count, const Fill& fill);
  // Last stage: the same as targets, which lie where layers read them until the next call.
  absl::StatusOr<const int32_t*> Targets(int64_t count, const Fill& fill);

  // Last stage, `generate`: where layers write logits [vocabulary], and what they wrote.
  float* logits() { return logits_.f32(); }
  absl::StatusOr<const std::vector<float>*> ReadLogits();

 private:
  TokenIo(const StageJob& job, ComputeDevice* device) : job_(job), device_(*device) {}
  absl::Status Carve();

  const StageJob& job_;
  ComputeDevice& device_;
  std::vector<int32_t> host_tokens_;
  std::vector<float> host_logits_;
  Tensor targets_, logits_;
};

}  // namespace headrace
