#include "worker/pipeline/boundary_codec.h"

#include "common/status.h"

namespace headrace {
namespace {

Act Of(const Tensor& boundary) { return {boundary.data, boundary.type}; }

}  // namespace

absl::StatusOr<std::unique_ptr<BoundaryCodec>> BoundaryCodec::Create(const StageShape& shape,
                                                                     Arena* arena, Ops* ops) {
  std::unique_ptr<BoundaryCodec> codec(new BoundaryCodec(ops));
  const ElementType travels =
      shape.bf16_boundaries ? ElementType::kBfloat16 : ElementType::kFloat32;
  if (travels == ops->activation_type()) return codec;
  const auto carve = [&](const char* name, Act* buffer) -> absl::Status {
    HEADRACE_ASSIGN_OR_RETURN(const Tensor tensor,
                              arena->Carve(MemoryKind::kWorkspace, name, ops->activation_type(),
                                           {shape.largest.tokens(), shape.model.width}));
    *buffer = Of(tensor);
    return absl::OkStatus();
  };
  if (shape.stage > 0) {
    HEADRACE_RETURN_IF_ERROR(carve("converted input", &codec->input_));
    if (shape.training) HEADRACE_RETURN_IF_ERROR(carve("input gradient", &codec->input_gradient_));
  }
  if (shape.stage < shape.num_stages - 1) {
    HEADRACE_RETURN_IF_ERROR(carve("output or its gradient", &codec->output_));
  }
  return codec;
}

void BoundaryCodec::Convert(ConstAct from, Act to, int64_t elements) {
  if (to.type() == ElementType::kBfloat16) {
    ops_->NarrowBf16(from.f32(), to.bf16(), elements);
  } else {
    ops_->WidenBf16(from.bf16(), to.f32(), elements);
  }
}

const void* BoundaryCodec::Input(const void* boundary, int64_t elements) {
  if (input_ == nullptr) return boundary;
  const ElementType travels =
      input_.type() == ElementType::kBfloat16 ? ElementType::kFloat32 : ElementType::kBfloat16;
  Convert({boundary, travels}, input_, elements);
  return input_.data();
}

ConstAct BoundaryCodec::OutputGradient(const Tensor& arrived) {
  if (arrived.data == nullptr || output_ == nullptr) return Of(arrived);
  Convert(Of(arrived), output_, arrived.elements());
  return output_;
}

Act BoundaryCodec::Output(const Tensor& outgoing) {
  return outgoing.data == nullptr || output_ == nullptr ? Of(outgoing) : output_;
}

Act BoundaryCodec::InputGradient(const Tensor& outgoing) {
  return outgoing.data == nullptr || input_gradient_ == nullptr ? Of(outgoing) : input_gradient_;
}

void BoundaryCodec::Close(ConstAct written, const Tensor& outgoing) {
  if (outgoing.data == nullptr || written == Of(outgoing)) return;
  Convert(written, Of(outgoing), outgoing.elements());
}

}  // namespace headrace
