// Values people write: byte sizes and addresses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace headrace {

// "8GiB", "512MiB", "1.5GiB", "64KiB", "8GB" (10^9), "1048576". INVALID_ARGUMENT shows the forms.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);
// "8.0 GiB", "512 MiB", "17 B".
std::string FormatBytes(int64_t bytes);
// "12.3 K", "124.4 M", "1.5 B".
std::string FormatCount(double count);

// "host:port", "[v6]:port" or "unix:/path" (the path must fit a socket address: 107 bytes).
//   INVALID_ARGUMENT  says which part is wrong
absl::Status CheckAddress(std::string_view address);
// As CheckAddress, where a socket's path will not do.
absl::Status CheckTcpAddress(std::string_view address);

}  // namespace headrace
