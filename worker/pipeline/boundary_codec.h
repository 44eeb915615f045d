// What stands between links and layers where boundaries travel as bfloat16
// (pipeline.boundary_dtype): layers compute in fp32, so what arrived is widened before they read
// it, and what they wrote is narrowed before it leaves.
//
//   link ─▶ slot bf16 ─widen─▶ buffer fp32 ─▶ layers ─▶ buffer fp32 ─narrow─▶ slot bf16 ─▶ link
//
// With fp32 boundaries the layers read and write the slots themselves, and this costs nothing.
// Owned by the compute thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "plan/stage_memory.h"
#include "worker/backend/arena.h"
#include "worker/backend/ops.h"
#include "worker/backend/tensor.h"

namespace headrace {

class BoundaryCodec {
 public:
  // Carves ConversionBytes(shape) of workspace. `arena` and `ops` must outlive the codec.
  //   RESOURCE_EXHAUSTED  as Arena::Carve
  static absl::StatusOr<std::unique_ptr<BoundaryCodec>> Create(const StageShape& shape,
                                                               Arena* arena, Ops* ops);

  // The stage's input as the layers read it: `boundary` as it is (token ids, or fp32), or
  // `elements` of it widened. Valid until the next call.
  const void* Input(const void* boundary, int64_t elements);
  // The gradient that arrived from downstream, likewise; null if none did (last stage).
  const float* OutputGradient(const Tensor& arrived);

  // Where the layers write what `outgoing` is to carry: its own memory, or a buffer that Close then
  // narrows into it. Null if it has none (the last stage's output, the first stage's gradient).
  float* Output(const Tensor& outgoing);
  float* InputGradient(const Tensor& outgoing);
  // To be called once the layers have written `outgoing`'s numbers to `written`.
  void Close(const float* written, const Tensor& outgoing);

 private:
  explicit BoundaryCodec(Ops* ops) : ops_(ops) {}

  Ops* const ops_;
  // Null: nothing to convert there.
  float* input_ = nullptr;           // stage > 0
  float* input_gradient_ = nullptr;  // stage > 0, training
  float* output_ = nullptr;          // stage < K−1: its output in F, the gradient of that in B
};

}  // namespace headrace
