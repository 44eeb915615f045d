#include "plan/recovery_check.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "plan/check_values.h"

namespace headrace {
namespace {

constexpr char kStore[] = "checkpoint.store";
constexpr char kFolder[] = "file://";
constexpr char kWhatWorks[] =
    "file:///FOLDER, a folder that coordinator and workers all see under this path, or no store: "
    "the coordinator's own";
constexpr int64_t kMostKept = 1'000'000;
constexpr size_t kLongestPath = 1024;
constexpr double kMostMinutes = 366 * 24 * 60;
constexpr double kMostSeconds = 7 * 24 * 3600;

absl::Status BadStore(const std::string& what, const std::string& expected) {
  return BadValue(kStore, what, expected);
}

std::string Shown(const std::string& store) {
  std::string shown = store.substr(0, 100);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return absl::ascii_iscntrl(c) != 0; }, '?');
  return absl::StrCat("\"", shown, shown.size() < store.size() ? "…\"" : "\"");
}

// What is no folder's URI, by what its writer may have had in mind.
absl::Status ExplainScheme(const std::string& store) {
  if (absl::StartsWith(store, "s3:") || absl::StartsWith(store, "gs:")) {
    return BadStore(absl::StrCat(Shown(store), ": buckets cannot be written to"),
                    absl::StrCat(kWhatWorks, "; a bucket that is mounted as a folder will do"));
  }
  if (absl::StartsWith(store, "/")) {
    return BadStore(Shown(store), absl::StrCat("file://", store, " for this folder"));
  }
  return BadStore(Shown(store), kWhatWorks);
}

bool HasDots(const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  return std::any_of(parts.begin(), parts.end(),
                     [](const std::string& part) { return part == "." || part == ".."; });
}

absl::Status CheckMost(const std::string& path, double value, double most, const char* said) {
  HEADRACE_RETURN_IF_ERROR(CheckNumber(path, value, Low::kZero));
  if (value <= most) return absl::OkStatus();
  return BadValue(path, absl::StrCat(value), absl::StrCat("at most ", most, " (", said, ")"));
}

double EveryMinutes(const v1::CheckpointSpec& spec) {
  return spec.has_every_minutes() ? spec.every_minutes() : 10;
}

}  // namespace

absl::StatusOr<std::string> StoreFolder(const std::string& store) {
  if (store.empty()) return store;
  if (!absl::StartsWith(store, kFolder)) return ExplainScheme(store);
  std::string folder = store.substr(sizeof(kFolder) - 1);
  if (!absl::StartsWith(folder, "/")) {
    return BadStore(Shown(store),
                    "an absolute path after file://, so three slashes: file:///FOLDER");
  }
  while (absl::EndsWith(folder, "/")) folder.pop_back();
  if (folder.empty()) return BadStore(Shown(store), "a folder, not the root of all");
  if (folder.size() > kLongestPath) {
    return BadStore(absl::StrCat("a path of ", folder.size(), " bytes"),
                    absl::StrCat("at most ", kLongestPath));
  }
  const bool plain = std::none_of(folder.begin(), folder.end(),
                                  [](unsigned char c) { return absl::ascii_iscntrl(c) != 0; });
  if (!plain || HasDots(folder)) {
    return BadStore(Shown(store), "a path without \".\", \"..\" and control characters");
  }
  return folder;
}

absl::Status CheckCheckpoint(const v1::CheckpointSpec& spec) {
  const std::string path = "checkpoint.";
  HEADRACE_RETURN_IF_ERROR(CheckRange(path + "every_steps", spec.every_steps(), 0, kMaxSteps));
  HEADRACE_RETURN_IF_ERROR(
      CheckMost(path + "every_minutes", EveryMinutes(spec), kMostMinutes, "a year"));
  if (spec.has_keep_last()) {
    HEADRACE_RETURN_IF_ERROR(CheckRange(path + "keep_last", spec.keep_last(), 1, kMostKept,
                                        ": without one there is nothing to go on from"));
  }
  HEADRACE_RETURN_IF_ERROR(CheckRange(path + "keep_every", spec.keep_every(), 0, kMaxSteps));
  HEADRACE_RETURN_IF_ERROR(StoreFolder(spec.store()).status());
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum(path + "replicate", spec.replicate(),
                                             v1::Replication_IsValid(spec.replicate()),
                                             "auto, neighbour or off"));
  HEADRACE_RETURN_IF_ERROR(
      CheckRange(path + "replicate_every", spec.replicate_every(), 0, kMaxSteps));
  if (spec.replicate_every() > 0 && spec.replicate() == v1::REPLICATION_OFF) {
    return BadValue(path + "replicate_every", absl::StrCat(spec.replicate_every()),
                    "it only with replicate: auto or neighbour");
  }
  return absl::OkStatus();
}

absl::Status CheckRecovery(const v1::RecoverySpec& spec, const v1::CheckpointSpec& checkpoint) {
  const std::string path = "recovery.";
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum(path + "restart", spec.restart(),
                                             v1::Switch_IsValid(spec.restart()), "auto or off"));
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum(path + "elastic", spec.elastic(),
                                             v1::Switch_IsValid(spec.elastic()), "auto or off"));
  HEADRACE_RETURN_IF_ERROR(CheckOptionalEnum(path + "on_nan", spec.on_nan(),
                                             v1::NanPolicy_IsValid(spec.on_nan()),
                                             "stop, rollback or skip"));
  const bool checkpoints = checkpoint.every_steps() > 0 || EveryMinutes(checkpoint) > 0;
  if (spec.on_nan() == v1::NAN_POLICY_ROLLBACK && !checkpoints) {
    return BadValue(path + "on_nan", "rollback",
                    "it only with checkpoints to go back to: checkpoint.every_steps or "
                    "checkpoint.every_minutes above 0");
  }
  HEADRACE_RETURN_IF_ERROR(CheckNumber(path + "spike_factor", spec.spike_factor(), Low::kZero));
  if (spec.spike_factor() > 0 && spec.spike_factor() <= 1) {
    return BadValue(path + "spike_factor", absl::StrCat(spec.spike_factor()),
                    "0 (no loss counts as a spike) or a number above 1");
  }
  if (!spec.has_coordinator_timeout_s()) return absl::OkStatus();
  return CheckMost(path + "coordinator_timeout_s", spec.coordinator_timeout_s(), kMostSeconds,
                   "a week");
}

}  // namespace headrace
