#include "worker/pipeline/verdict.h"

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

constexpr unsigned kStopBit = 1, kSkipBit = 2, kRollbackBit = 4, kCheckpointBit = 8,
                   kReplicateBit = 16, kLeaveBit = 32, kAllBits = 63;

unsigned BitOf(Fate fate) {
  switch (fate) {
    case Fate::kApply:
      return 0;
    case Fate::kStop:
      return kStopBit;
    case Fate::kSkip:
      return kSkipBit;
    case Fate::kRollback:
      return kRollbackBit;
  }
  return kStopBit;
}

}  // namespace

double NumberOf(const Verdict& verdict) {
  return BitOf(verdict.fate) | (verdict.checkpoint ? kCheckpointBit : 0) |
         (verdict.replicate ? kReplicateBit : 0) | (verdict.leave ? kLeaveBit : 0);
}

absl::StatusOr<Verdict> VerdictOf(double number) {
  if (number >= 0 && number <= kAllBits) {
    for (const Fate fate : {Fate::kApply, Fate::kStop, Fate::kSkip, Fate::kRollback}) {
      const unsigned bits = static_cast<unsigned>(number);
      const Verdict verdict{fate, (bits & kCheckpointBit) != 0, (bits & kReplicateBit) != 0,
                            (bits & kLeaveBit) != 0};
      if (NumberOf(verdict) == number) return verdict;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(number, " is not a verdict about a step"));
}

}  // namespace headrace
