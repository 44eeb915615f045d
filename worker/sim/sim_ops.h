// Ops that do nothing at once: no byte of a tensor is read or written, so an arena behind them
// takes address space only. Norms and losses are 0.
#pragma once

#include <memory>

#include "worker/backend/ops.h"

namespace headrace {

std::unique_ptr<Ops> CreateSimOps();

}  // namespace headrace
