#include "worker/pipeline/token_io.h"

#include "common/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<TokenIo>> TokenIo::Create(const StageJob& job,
                                                         ComputeDevice* device) {
  std::unique_ptr<TokenIo> io(new TokenIo(job, device));
  HEADRACE_RETURN_IF_ERROR(io->Carve());
  return io;
}

absl::Status TokenIo::Carve() {
  const int64_t tokens = job_.shape.largest.tokens(), vocabulary = job_.shape.model.vocabulary;
  const bool in_place = device_.in_host_memory();
  if (job_.last() || !in_place) host_tokens_.resize(static_cast<size_t>(tokens));
  if (!job_.last()) return absl::OkStatus();
  if (job_.generates) host_logits_.resize(static_cast<size_t>(vocabulary));
  if (in_place) {
    targets_ = {host_tokens_.data(), ElementType::kInt32, {tokens}};
    logits_ = {host_logits_.data(), ElementType::kFloat32, {vocabulary}};
    return absl::OkStatus();
  }
  Tensor& on_device = job_.generates ? logits_ : targets_;
  HEADRACE_ASSIGN_OR_RETURN(
      on_device,
      device_.arena()->Carve(MemoryKind::kWorkspace, job_.generates ? "logits" : "targets",
                             job_.generates ? ElementType::kFloat32 : ElementType::kInt32,
                             {job_.generates ? vocabulary : tokens}));
  return absl::OkStatus();
}

absl::Status TokenIo::Write(void* ids, int64_t count, const Fill& fill) {
  if (device_.in_host_memory()) {
    fill(static_cast<int32_t*>(ids));
    return absl::OkStatus();
  }
  fill(host_tokens_.data());
  return device_.ToDevice(ids, host_tokens_.data(), 4 * count, "token ids");
}

absl::StatusOr<const int32_t*> TokenIo::Targets(int64_t count, const Fill& fill) {
  fill(host_tokens_.data());
  if (!device_.in_host_memory()) {
    HEADRACE_RETURN_IF_ERROR(
        device_.ToDevice(targets_.data, host_tokens_.data(), 4 * count, "targets"));
  }
  return targets_.i32();
}

absl::StatusOr<const std::vector<float>*> TokenIo::ReadLogits() {
  if (!device_.in_host_memory()) {
    HEADRACE_RETURN_IF_ERROR(
        device_.ToHost(host_logits_.data(), logits_.data, logits_.bytes(), "logits"));
  }
  return &host_logits_;
}

}  // namespace headrace
