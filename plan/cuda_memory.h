// What a stage takes on a CUDA device beyond what its tensors take anywhere: memory that ops use
// among themselves, and a place for what the host hands in or wants to read. Part of the kind
// "workspace". worker/backend/cuda_device.h carves what stands here. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/stage_memory.h"

namespace headrace {

// The workspace of cuBLASLt: what NVIDIA recommends for compute capability 9.0.
inline constexpr int64_t kCudaProductBytes = int64_t{32} << 20;

// The most scratch memory that an op of this layer asks for, for micro-batches up to `shape`.
int64_t CudaScratchBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape,
                         Precision precision);

// Of all ops of a stage: the most of its layers.
int64_t CudaScratchBytes(const StageShape& shape);

// What the host hands in or reads. On the last stage targets of a micro-batch, the losses of all
// micro-batches and of an evaluation's, or in `generate` the logits of a token.
int64_t CudaTransferBytes(const StageShape& shape);
// Of each stage that trains: the squared norms of so many own parameters.
int64_t CudaNormBytes(int64_t own_parameters);
int64_t OwnParameters(const std::vector<LayerSpec>& layers);

}  // namespace headrace
