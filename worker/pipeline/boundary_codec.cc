#include "worker/pipeline/boundary_codec.h"

#include "common/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<BoundaryCodec>> BoundaryCodec::Create(const StageShape& shape,
                                                                     Arena* arena, Ops* ops) {
  std::unique_ptr<BoundaryCodec> codec(new BoundaryCodec(ops));
  if (!shape.bf16_boundaries) return codec;
  const auto carve = [&](const char* name, float** buffer) -> absl::Status {
    HEADRACE_ASSIGN_OR_RETURN(
        const Tensor tensor, arena->Carve(MemoryKind::kWorkspace, name, ElementType::kFloat32,
                                          {shape.largest.tokens(), shape.model.width}));
    *buffer = tensor.f32();
    return absl::OkStatus();
  };
  if (shape.stage > 0) {
    HEADRACE_RETURN_IF_ERROR(carve("widened input", &codec->input_));
    if (shape.training) HEADRACE_RETURN_IF_ERROR(carve("input gradient", &codec->input_gradient_));
  }
  if (shape.stage < shape.num_stages - 1) {
    HEADRACE_RETURN_IF_ERROR(carve("output or its gradient", &codec->output_));
  }
  return codec;
}

const void* BoundaryCodec::Input(const void* boundary, int64_t elements) {
  if (input_ == nullptr) return boundary;
  ops_->WidenBf16(static_cast<const uint16_t*>(boundary), input_, elements);
  return input_;
}

const float* BoundaryCodec::OutputGradient(const Tensor& arrived) {
  if (arrived.type != ElementType::kBfloat16) return arrived.f32();
  ops_->WidenBf16(arrived.bf16(), output_, arrived.elements());
  return output_;
}

float* BoundaryCodec::Output(const Tensor& outgoing) {
  return outgoing.type == ElementType::kBfloat16 ? output_ : outgoing.f32();
}

float* BoundaryCodec::InputGradient(const Tensor& outgoing) {
  return outgoing.type == ElementType::kBfloat16 ? input_gradient_ : outgoing.f32();
}

void BoundaryCodec::Close(const float* written, const Tensor& outgoing) {
  if (outgoing.type != ElementType::kBfloat16) return;
  ops_->NarrowBf16(written, outgoing.bf16(), outgoing.elements());
}

}  // namespace headrace
