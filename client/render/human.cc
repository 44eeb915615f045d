#include "client/render/human.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace headrace {

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e15) return "?";
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-3) return absl::StrFormat("%.0f µs", seconds * 1e6);
  if (seconds < 0.9995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%dm %02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh %02dm", whole / 3600, whole / 60 % 60);
  return absl::StrFormat("%dd %02dh", whole / 86400, whole / 3600 % 24);
}

std::string FormatShare(double share) { return absl::StrFormat("%.1f %%", share * 100); }

std::string FormatUnixTime(double unix_seconds) {
  if (!(unix_seconds > 0) || !(unix_seconds < 1e12)) return "";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::UnixEpoch() + absl::Seconds(unix_seconds),
                          absl::LocalTimeZone());
}

std::string FormatLoss(double loss) { return absl::StrFormat("%.4f", loss); }

}  // namespace headrace
