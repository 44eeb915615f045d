// What stands between links and layers where boundaries travel in another type
// (pipeline.boundary_dtype) than layers compute in (Ops::activation_type): what arrived is
// converted before they read it, and what they wrote before it leaves.
//
//   link ─▶ slot bf16 ─widen─▶ buffer fp32 ─▶ layers ─▶ buffer fp32 ─narrow─▶ slot bf16 ─▶ link
//
// and the other way about for bfloat16 activations with fp32 boundaries, where leaving is exact.
// With one type the layers read and write the slots themselves, and this costs nothing. Owned by
// the compute thread.
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

  // The stage's input as the layers read it: `boundary` as it is (token ids, or activations), or
  // `elements` of it converted. Valid until the next call.
  const void* Input(const void* boundary, int64_t elements);
  // The gradient that arrived from downstream, likewise; null if none did (last stage).
  ConstAct OutputGradient(const Tensor& arrived);

  // Where the layers write what `outgoing` is to carry: its own memory, or a buffer that Close then
  // converts into it. Null if it has none (the last stage's output, the first stage's gradient).
  Act Output(const Tensor& outgoing);
  Act InputGradient(const Tensor& outgoing);
  // To be called once the layers have written `outgoing`'s numbers to `written`.
  void Close(ConstAct written, const Tensor& outgoing);

 private:
  explicit BoundaryCodec(Ops* ops) : ops_(ops) {}
  void Convert(ConstAct from, Act to, int64_t elements);

  Ops* const ops_;
  // Null: nothing to convert there.
  Act input_;           // stage > 0
  Act input_gradient_;  // stage > 0, training
  Act output_;          // stage < K−1: its output in F, the gradient of that in B
};

}  // namespace headrace
