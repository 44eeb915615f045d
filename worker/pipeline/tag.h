// Names one tensor on its way between stages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

// "activation", "evaluation activation", "tied weights" …; "message kind 77" if unknown.
std::string KindName(v1::MessageKind kind);

// "activation of step 12, micro-batch 3, from stage 1"; kinds that come once a step name no
// micro-batch, and the chunk stands there only when it is not 0.
std::string ToText(const Tag& tag);

// Pipelined kinds (activations, gradients) are paced by credits, one per tensor in flight on an
// edge and class. The ends of a tie pace themselves, once a step, and have a class for their
// memory's sake.
enum class CreditClass { kActivation, kGradient, kTie, kNone };
inline constexpr int kNumCreditClasses = 3;
CreditClass CreditClassOf(v1::MessageKind kind);
inline bool IsPipelined(v1::MessageKind kind) {
  const CreditClass credit_class = CreditClassOf(kind);
  return credit_class == CreditClass::kActivation || credit_class == CreditClass::kGradient;
}

}  // namespace headrace
