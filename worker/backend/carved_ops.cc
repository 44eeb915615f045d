#include "worker/backend/carved_ops.h"

#include "common/status.h"

namespace headrace {

absl::StatusOr<void*> CarvePanels(Precision precision, int threads, Arena* arena) {
  const int64_t bytes = PanelBytes(precision, threads);
  if (bytes == 0) return nullptr;
  HEADRACE_ASSIGN_OR_RETURN(const Tensor panels,
                            arena->Carve(MemoryKind::kWorkspace, "panels of bf16 products",
                                         ElementType::kBfloat16, {bytes / 2}));
  return panels.data;
}

absl::StatusOr<std::unique_ptr<Ops>> CarveCpuOps(Precision precision, int threads, Arena* arena) {
  HEADRACE_ASSIGN_OR_RETURN(void* const panels, CarvePanels(precision, threads, arena));
  return CreateCpuOps(threads, precision, panels);
}

}  // namespace headrace
