#include "coordinator/blame.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

using Stages = std::vector<std::string>;

const Fault* First(const std::vector<Fault>& faults, FaultKind kind) {
  for (const Fault& fault : faults) {
    if (fault.kind == kind) return &fault;
  }
  return nullptr;
}

const Fault* FirstAccusationOf(const std::vector<Fault>& faults, const std::string& worker) {
  for (const Fault& fault : faults) {
    if (fault.kind == FaultKind::kAccusation && fault.blamed == worker) return &fault;
  }
  return nullptr;
}

const Fault* FirstSilent(const std::vector<Fault>& faults, const std::string& worker) {
  for (const Fault& fault : faults) {
    if (fault.kind == FaultKind::kSilent && fault.worker == worker) return &fault;
  }
  return nullptr;
}

std::string Who(const std::string& worker, int64_t stage) {
  return absl::StrCat("worker ", worker, " (stage ", stage, ")");
}

// The worker's own sentence, with who it is in front unless it says so itself.
std::string Said(const Fault& fault) {
  if (fault.worker.empty()) return fault.text;
  if (absl::StrContains(fault.text, fault.worker) && absl::StrContains(fault.text, "stage")) {
    return fault.text;
  }
  return absl::StrCat(Who(fault.worker, fault.stage), ": ", fault.text);
}

std::string Lost(const Fault& lost, const Fault* accuser, int64_t last_step) {
  std::string sentence = absl::StrCat(Who(lost.worker, lost.stage), " lost: ", lost.text);
  if (accuser != nullptr) return absl::StrCat(sentence, "; ", Said(*accuser));
  if (last_step > 0) return absl::StrCat(sentence, "; the last finished step is ", last_step);
  return absl::StrCat(sentence, "; no step was finished");
}

}  // namespace

Root FindRoot(const std::vector<Fault>& faults, const Stages& stages, int64_t last_step) {
  if (const Fault* own = First(faults, FaultKind::kOwn)) {
    return {FaultKind::kOwn, own->worker, own->stage, Said(*own)};
  }
  const auto lost_root = [&](const Fault& lost, const Fault* accuser) {
    return Root{FaultKind::kLost, lost.worker, lost.stage, Lost(lost, accuser, last_step)};
  };
  const Fault* accusation = First(faults, FaultKind::kAccusation);
  if (const Fault* lost = First(faults, FaultKind::kLost)) {
    const Fault* accuser = FirstAccusationOf(faults, lost->worker);
    return lost_root(*lost, accuser != nullptr ? accuser : accusation);
  }
  if (accusation == nullptr) return lost_root(*First(faults, FaultKind::kSilent), nullptr);
  if (const Fault* silent = FirstSilent(faults, accusation->blamed)) {
    return lost_root(*silent, accusation);
  }
  const auto blamed = std::find(stages.begin(), stages.end(), accusation->blamed);
  return {FaultKind::kAccusation, accusation->blamed,
          blamed != stages.end() ? blamed - stages.begin() : accusation->stage, Said(*accusation)};
}

bool RootIsKnown(const std::vector<Fault>& faults) {
  return First(faults, FaultKind::kOwn) != nullptr || First(faults, FaultKind::kLost) != nullptr;
}

}  // namespace headrace
