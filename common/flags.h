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

// What a machine's link carries, and how long a bit is on its way.
struct LinkSpeed {
  double bytes_per_second = 0;  // 0: not said
  double latency_s = 0;         // one way
};
// "1Gbit/s" or "125MB/s", or either with a latency: "1Gbit/s,1ms" (KMGT; us, ms, s).
//   INVALID_ARGUMENT  shows the forms; also out of 1 KB/s to 1 TB/s, or over 10 s
absl::StatusOr<LinkSpeed> ParseLinkSpeed(std::string_view text);

// "host:port", "[v6]:port" or "unix:/path" (the path must fit a socket address: 107 bytes).
//   INVALID_ARGUMENT  says which part is wrong
absl::Status CheckAddress(std::string_view address);
// As CheckAddress, where a socket's path will not do.
absl::Status CheckTcpAddress(std::string_view address);

}  // namespace headrace
