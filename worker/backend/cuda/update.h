// How an optimizer goes over many tensors: as many of them in one launch as a kernel's parameters
// hold, one row of blocks for each.
//
// A Rule updates one element:
//   __device__ float operator()(float w, float g, float& state, float& state2) const  → the new w
// and says which states it reads and writes: `bool keeps_state() const`, `keeps_state2()`.
#pragma once

#include <algorithm>

#include "worker/backend/cuda/kernels.h"

namespace headrace::cuda {

inline constexpr int kTensorsOfLaunch = 48;  // 48 bytes each, of the 4 KiB that parameters may take

struct UpdatedTensors {
  UpdatedTensor tensors[kTensorsOfLaunch];
};

template <typename Rule>
__global__ void UpdateKernel(UpdatedTensors all, Rule rule) {
  const UpdatedTensor& t = all.tensors[blockIdx.y];
  for (int64_t i = GlobalThread() * 4; i < t.count; i += AllThreads() * 4) {
    const int64_t left = t.count - i;
    Pack<float> w = Load(t.w + i, left);
    const Pack<float> g = Load(t.g + i, left);
    Pack<float> state = {}, state2 = {};
    if (rule.keeps_state()) state = Load(t.state + i, left);
    if (rule.keeps_state2()) state2 = Load(t.state2 + i, left);
#pragma unroll
    for (int k = 0; k < 4; ++k) w.at[k] = rule(w.at[k], g.at[k], state.at[k], state2.at[k]);
    Store(t.w + i, left, w);
    if (rule.keeps_state()) Store(t.state + i, left, state);
    if (rule.keeps_state2()) Store(t.state2 + i, left, state2);
    if (t.half == nullptr) continue;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < left) t.half[i + k] = __bfloat16_as_ushort(__float2bfloat16(w.at[k]));
    }
  }
}

template <typename Rule>
cudaError_t UpdateAll(std::span<const UpdatedTensor> tensors, const Rule& rule,
                      cudaStream_t stream) {
  for (size_t first = 0; first < tensors.size(); first += kTensorsOfLaunch) {
    UpdatedTensors part;
    const size_t num = std::min<size_t>(tensors.size() - first, kTensorsOfLaunch);
    int64_t most = 0;
    for (size_t i = 0; i < num; ++i) {
      part.tensors[i] = tensors[first + i];
      if (part.tensors[i].count > most) most = part.tensors[i].count;
    }
    if (most == 0) continue;
    const cudaError_t error =
        Launch(UpdateKernel<Rule>, dim3(BlocksFor((most + 3) / 4), static_cast<unsigned>(num)),
               kThreads, 0, stream, part, rule);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace headrace::cuda
