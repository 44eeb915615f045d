// What a stage computes on, as far as its memory depends on it.
#pragma once

#include <cstdint>

namespace headrace {

enum class DeviceKind {
  kCpu,   // tensors lie in memory of the worker's process
  kCuda,  // tensors lie in memory of the device; what travels passes through pinned memory
};

// The largest head that attention has a kernel for on a CUDA device.
inline constexpr int64_t kLargestCudaHead = 128;

// Whether it has one on tensor cores, for bfloat16; other sizes are computed in fp32.
inline bool HasTensorCoreAttention(int64_t head_size) {
  return head_size == 32 || head_size == 64 || head_size == 96 || head_size == 128;
}

// "cpu" and "cuda", as a worker registers. Anything else ("sim") counts as a CPU.
template <typename Text>
DeviceKind DeviceKindOf(const Text& name) {
  return name == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
}

}  // namespace headrace
