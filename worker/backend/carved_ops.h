// Ops with the memory that their precision wants.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/arena.h"
#include "worker/backend/ops.h"

namespace headrace {

// PanelBytes(precision, threads) of workspace; null where that is 0.
//   RESOURCE_EXHAUSTED  as Arena::Carve
absl::StatusOr<void*> CarvePanels(Precision precision, int threads, Arena* arena);

// CreateCpuOps with its panels carved as workspace of `arena`, which must outlive the ops.
//   RESOURCE_EXHAUSTED  as Arena::Carve
absl::StatusOr<std::unique_ptr<Ops>> CarveCpuOps(Precision precision, int threads, Arena* arena);

}  // namespace headrace
