// Which of a stage's input pools lie in memory that the sender may write to, so that a tensor it
// sends needs no copy here. The pools are those there would be without: sharing takes no memory.
#pragma once

#include <string>
#include <vector>

#include "worker/backend/arena.h"
#include "worker/pipeline/tag.h"

namespace headrace {

struct SharedInput {
  int from_stage = 0;
  CreditClass credit_class = CreditClass::kNone;
  Pool* pool = nullptr;
};

// Borrowed from the stage's equipment.
struct SharedInputs {
  const SharedRegion* region = nullptr;  // null: none of them
  std::string why_none;                  // then
  std::vector<SharedInput> inputs;
  // Pools in a device's memory, whose slots a sender with a device may fill (LinkContext.device).
  std::vector<SharedInput> device_inputs = {};
};

}  // namespace headrace
