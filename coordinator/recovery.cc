#include "coordinator/recovery.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace headrace {
namespace {

constexpr size_t kMaxAvoided = 1000;

// The same sentence on another worker, for another stage, is the same fault.
std::string Signature(const Breakdown& breakdown) {
  const Root& root = breakdown.root;
  const std::string who = absl::StrCat("worker ", root.worker);
  const std::string where = absl::StrCat("stage ", root.stage);
  return absl::StrCat(breakdown.step, " ",
                      absl::StrReplaceAll(root.verdict, {{who, "worker"}, {where, "stage"}}));
}

}  // namespace

std::string Recovery::Judge(const Breakdown& breakdown) {
  const Root& root = breakdown.root;
  if (!restart_) return root.verdict;
  if (breakdown.got_somewhere) fruitless_faults_ = fruitless_losses_ = 0;
  const std::string before = std::exchange(last_own_, "");
  if (breakdown.bad_slice) return "";
  if (root.kind == FaultKind::kLost) {
    fruitless_losses_ += breakdown.got_somewhere ? 0 : 1;
    return "";
  }
  fruitless_faults_ += breakdown.got_somewhere ? 0 : 1;
  if (root.kind == FaultKind::kOwn) {
    last_own_ = Signature(breakdown);
    if (last_own_ == before) return absl::StrCat(root.verdict, " (the same twice in a row)");
    if (!root.worker.empty() && avoided_.size() < kMaxAvoided) avoided_.insert(root.worker);
  }
  if (fruitless_faults_ < kFruitless) return "";
  return absl::StrCat(root.verdict, " (", kFruitless, " generations in a row got nowhere)");
}

absl::Duration Recovery::Pause() const {
  const int beyond = fruitless_losses_ - kFruitless;
  if (beyond < 0) return absl::ZeroDuration();
  return std::min(kLongestPause, absl::Seconds(1 << std::min(beyond, 10)));
}

}  // namespace headrace
