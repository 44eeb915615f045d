#include "common/fault_point.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr char kVariable[] = "HEADRACE_FAULT";
constexpr std::array<const char*, 10> kPoints = {
    "assign",       "load",   "connect",   "step_start", "mid_forward",
    "mid_backward", "reduce", "optimizer", "snapshot",   "commit"};
constexpr char kDelay[] = "delay=";
constexpr std::pair<const char*, FaultAction> kActions[] = {
    {"kill", FaultAction::kKill},   {"abort", FaultAction::kAbort}, {"stop", FaultAction::kStop},
    {"error", FaultAction::kError}, {"full", FaultAction::kFull},
};

absl::Status Wrong(const std::string& what, const std::string& came, const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(kVariable, ": ", what, " \"", came, "\"; expected ", expected));
}

absl::Status ReadAction(const std::string& text, PlannedFault* fault) {
  if (absl::StartsWith(text, kDelay)) {
    fault->action = FaultAction::kDelay;
    const std::string duration = text.substr(sizeof(kDelay) - 1);
    if (absl::ParseDuration(duration, &fault->delay) && fault->delay >= absl::ZeroDuration() &&
        fault->delay <= absl::Hours(1)) {
      return absl::OkStatus();
    }
    return Wrong("delay", duration, "a duration of at most an hour, such as 80ms");
  }
  for (const auto& [word, action] : kActions) {
    if (text != word) continue;
    fault->action = action;
    return absl::OkStatus();
  }
  return Wrong("action", text, "kill, abort, stop, error, full or delay=DURATION");
}

absl::Status ReadCount(const std::string& text, PlannedFault* fault) {
  fault->from_then = absl::EndsWith(text, "+");
  const std::string number = text.substr(0, text.size() - (fault->from_then ? 1 : 0));
  if (absl::SimpleAtoi(number, &fault->at) && fault->at >= 1) return absl::OkStatus();
  return Wrong("count", text, "1 or more, with + for every later pass, too");
}

absl::Status Do(const PlannedFault& fault, bool first) {
  const std::string where = absl::StrCat("fault point ", fault.point);
  if (first) LogWarning(where);
  switch (fault.action) {
    case FaultAction::kKill:
      kill(getpid(), SIGKILL);
      break;
    case FaultAction::kAbort:
      std::abort();
    case FaultAction::kStop:
      kill(getpid(), SIGSTOP);
      break;
    case FaultAction::kError:
      return absl::InternalError(where);
    case FaultAction::kFull:
      return absl::ResourceExhaustedError(absl::StrCat(where, ": no space left on device"));
    case FaultAction::kDelay:
      absl::SleepFor(fault.delay);
      break;
  }
  return absl::OkStatus();
}

#ifdef HEADRACE_FAULT_POINTS
// Null: no faults. Set before any other thread exists, never destroyed.
FaultPlan* process_plan = nullptr;
#endif

}  // namespace

absl::StatusOr<std::vector<PlannedFault>> ParseFaults(const std::string& text) {
  std::vector<PlannedFault> faults;
  for (const std::string& one : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> parts = absl::StrSplit(one, ':');
    if (parts.size() < 2 || parts.size() > 3) {
      return Wrong("fault", one, "POINT:ACTION or POINT:ACTION:COUNT");
    }
    PlannedFault& fault = faults.emplace_back();
    fault.point = parts[0];
    if (std::find(kPoints.begin(), kPoints.end(), parts[0]) == kPoints.end()) {
      return Wrong("point", parts[0], absl::StrJoin(kPoints, ", "));
    }
    HEADRACE_RETURN_IF_ERROR(ReadAction(parts[1], &fault));
    if (parts.size() == 3) HEADRACE_RETURN_IF_ERROR(ReadCount(parts[2], &fault));
  }
  return faults;
}

absl::Status FaultPlan::Pass(std::string_view point) {
  absl::Status failed;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const PlannedFault& fault = faults_[i];
    if (fault.point != point) continue;
    int64_t pass = 0;
    {
      absl::MutexLock lock(&mu_);
      pass = ++passed_[i];
    }
    if (pass == fault.at || (fault.from_then && pass > fault.at)) {
      failed.Update(Do(fault, pass == fault.at));
    }
  }
  return failed;
}

#ifdef HEADRACE_FAULT_POINTS
absl::Status ReadFaults() {
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return absl::OkStatus();
  HEADRACE_ASSIGN_OR_RETURN(std::vector<PlannedFault> faults, ParseFaults(text));
  process_plan = new FaultPlan(std::move(faults));
  return absl::OkStatus();
}

absl::Status FaultPoint(std::string_view point) {
  return process_plan == nullptr ? absl::OkStatus() : process_plan->Pass(point);
}
#else
absl::Status FaultPoint(std::string_view) { return absl::OkStatus(); }

absl::Status ReadFaults() {
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      kVariable,
      " is set, but this build has no fault points; build with -DHEADRACE_FAULT_POINTS=ON"));
}
#endif

}  // namespace headrace
