#include "plan/check_values.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace headrace {

absl::Status BadValue(const std::string& path, const std::string& value,
                      const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", value, "; expected ", expected));
}

absl::Status CheckRange(const std::string& path, int64_t value, int64_t low, int64_t high,
                        const std::string& why) {
  if (value >= low && value <= high) return absl::OkStatus();
  return BadValue(path, absl::StrCat(value),
                  absl::StrCat("a whole number from ", low, " to ", high, why));
}

absl::Status CheckNumber(const std::string& path, double value, Low low) {
  const bool large_enough = low == Low::kZero ? value >= 0 : value > 0;
  if (value <= std::numeric_limits<float>::max() && large_enough) return absl::OkStatus();
  const bool too_large = std::isfinite(value) && value > std::numeric_limits<float>::max();
  return BadValue(
      path, absl::StrCat(value),
      absl::StrCat(low == Low::kZero ? "a finite number, 0 or more" : "a finite number above 0",
                   too_large ? ", at most 3.4e38 (workers compute in float)" : ""));
}

absl::Status CheckShare(const std::string& path, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return BadValue(path, absl::StrCat(value), "a number from 0 up to, not including, 1");
}

absl::Status CheckEnum(const std::string& path, int value, bool known, const std::string& words) {
  if (known && value != 0) return absl::OkStatus();
  return BadValue(path, value == 0 ? "missing" : absl::StrCat("unknown value ", value), words);
}

absl::Status CheckOptionalEnum(const std::string& path, int value, bool known,
                               const std::string& words) {
  return value == 0 ? absl::OkStatus() : CheckEnum(path, value, known, words);
}

}  // namespace headrace
