// The words in which a job's checks refuse a value: "KEY.PATH: VALUE; expected …",
// INVALID_ARGUMENT.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace headrace {

// Beyond it a number of steps is a slip of the pen, and sums would no longer fit.
inline constexpr int64_t kMaxSteps = 1'000'000'000;

absl::Status BadValue(const std::string& path, const std::string& value,
                      const std::string& expected);

// `why` follows the bounds: " (training.batch_size: …)".
absl::Status CheckRange(const std::string& path, int64_t value, int64_t low, int64_t high,
                        const std::string& why = "");

enum class Low { kZero, kAboveZero };

// A number from `low` up that is finite as a float too, which is what workers compute with.
absl::Status CheckNumber(const std::string& path, double value, Low low);

// A number from 0 up to, not including, 1.
absl::Status CheckShare(const std::string& path, double value);

// `known`: what the enum's _IsValid says of `value`. 0 is "missing".
absl::Status CheckEnum(const std::string& path, int value, bool known, const std::string& words);

// As CheckEnum, for a field whose absence means the first word.
absl::Status CheckOptionalEnum(const std::string& path, int value, bool known,
                               const std::string& words);

}  // namespace headrace
