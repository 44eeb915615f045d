// Names one tensor on its way between stages.
#pragma once

#include <cstdint>
#include <string>

#include "headrace/v1/tensor.pb.h"

namespace headrace {

struct Tag {
  v1::MessageKind kind = v1::MESSAGE_KIND_UNSPECIFIED;
  int from_stage = 0;
  int64_t step = 0;
  int chunk = 0;  // of the receiver
  int micro_batch = 0;

  friend auto operator<=>(const Tag&, const Tag&) = default;
};

// "activation of step 12, micro-batch 3, from stage 1"
std::string ToText(const Tag& tag);

}  // namespace headrace
