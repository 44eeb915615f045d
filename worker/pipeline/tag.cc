#include "worker/pipeline/tag.h"

#include "absl/strings/str_cat.h"

namespace headrace {

std::string KindName(v1::MessageKind kind) {
  switch (kind) {
    case v1::MESSAGE_KIND_HELLO:
      return "hello";
    case v1::MESSAGE_KIND_ACTIVATION:
      return "activation";
    case v1::MESSAGE_KIND_GRADIENT:
      return "gradient";
    case v1::MESSAGE_KIND_EVAL_ACTIVATION:
      return "evaluation activation";
    case v1::MESSAGE_KIND_TIED_GRADIENT:
      return "tied gradient";
    case v1::MESSAGE_KIND_TIED_WEIGHTS:
      return "tied weights";
    case v1::MESSAGE_KIND_NORM_PARTIAL:
      return "norm partial";
    case v1::MESSAGE_KIND_DECISION:
      return "decision";
    case v1::MESSAGE_KIND_TOKEN:
      return "token";
    case v1::MESSAGE_KIND_END:
      return "end";
    case v1::MESSAGE_KIND_ATTACHED:
      return "attached";
    default:
      return absl::StrCat("message kind ", static_cast<int>(kind));
  }
}

std::string ToText(const Tag& tag) {
  std::string text = absl::StrCat(KindName(tag.kind), " of step ", tag.step);
  if (IsPipelined(tag.kind) || tag.micro_batch != 0) {
    absl::StrAppend(&text, ", micro-batch ", tag.micro_batch);
  }
  if (tag.chunk != 0) absl::StrAppend(&text, ", chunk ", tag.chunk);
  absl::StrAppend(&text, ", from stage ", tag.from_stage);
  return text;
}

CreditClass CreditClassOf(v1::MessageKind kind) {
  switch (kind) {
    case v1::MESSAGE_KIND_ACTIVATION:
    case v1::MESSAGE_KIND_EVAL_ACTIVATION:
      return CreditClass::kActivation;
    case v1::MESSAGE_KIND_GRADIENT:
      return CreditClass::kGradient;
    case v1::MESSAGE_KIND_TIED_GRADIENT:
    case v1::MESSAGE_KIND_TIED_WEIGHTS:
      return CreditClass::kTie;
    default:
      return CreditClass::kNone;
  }
}

}  // namespace headrace
