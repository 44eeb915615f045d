#include "common/flags.h"

#include <array>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace headrace {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"B", 1},
                                          {"KiB", 0x1p10},
                                          {"MiB", 0x1p20},
                                          {"GiB", 0x1p30},
                                          {"TiB", 0x1p40},
                                          {"KB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12}}};
constexpr std::array<Unit, 10> kRates = {{{"bit/s", 1.0 / 8},
                                          {"Kbit/s", 1e3 / 8},
                                          {"Mbit/s", 1e6 / 8},
                                          {"Gbit/s", 1e9 / 8},
                                          {"Tbit/s", 1e12 / 8},
                                          {"B/s", 1},
                                          {"KB/s", 1e3},
                                          {"MB/s", 1e6},
                                          {"GB/s", 1e9},
                                          {"TB/s", 1e12}}};
// The longest path sockaddr_un holds with its closing zero.
constexpr size_t kMaxSocketPath = 107;

absl::Status BadBytes(std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", std::string(text),
                   "\" is not a size; write 8GiB, 512MiB, 1.5GiB, 64KiB, 8GB or bytes"));
}

absl::Status BadAddress(std::string_view address, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", std::string(address),
                                                 "\" is not an address: ", std::string(why),
                                                 "; write host:port, [v6]:port or unix:/path"));
}

// Digits with at most one point; SimpleAtod alone would take "inf", "1e9" and "-1".
bool IsPlainNumber(std::string_view text) {
  int points = 0, digits = 0;
  for (const char c : text) {
    if (c == '.') {
      ++points;
    } else if (c >= '0' && c <= '9') {
      ++digits;
    } else {
      return false;
    }
  }
  return digits > 0 && points <= 1;
}

absl::Status CheckPort(std::string_view address, std::string_view port) {
  int value = 0;
  const bool digits = port.find_first_not_of("0123456789") == std::string_view::npos;
  if (!digits || !absl::SimpleAtoi(std::string(port), &value) || value > 65535) {
    return BadAddress(address, absl::StrCat("port \"", std::string(port), "\" is not 0 to 65535"));
  }
  return absl::OkStatus();
}

absl::Status CheckSocketPath(std::string_view address, std::string_view path) {
  if (path.empty()) return BadAddress(address, "the path is missing");
  if (path.size() > kMaxSocketPath) {
    return BadAddress(address, absl::StrCat("the path has ", path.size(),
                                            " bytes, a socket's at most ", kMaxSocketPath));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  const size_t end = text.find_first_not_of("0123456789.");
  std::string_view number = text.substr(0, end);
  std::string_view unit = end == std::string_view::npos ? "" : text.substr(end);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double value = 0;
  if (!IsPlainNumber(number) || !absl::SimpleAtod(std::string(number), &value))
    return BadBytes(text);
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double bytes = value * known.bytes;
    if (bytes >= 0x1p63) return BadBytes(text);
    return static_cast<int64_t>(std::llround(bytes));
  }
  return BadBytes(text);
}

absl::StatusOr<LinkSpeed> ParseLinkSpeed(std::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(absl::StrCat(
      "\"", std::string(text),
      "\" is not a link; write 1Gbit/s, 125MB/s or 1Gbit/s,1ms (rate, latency one way; "
      "1KB/s to 1TB/s, at most 10s)"));
  const size_t comma = text.find(',');
  const std::string_view rate = text.substr(0, comma);
  const size_t end = rate.find_first_not_of("0123456789.");
  const std::string_view number = rate.substr(0, end);
  const std::string_view unit = end == std::string_view::npos ? "" : rate.substr(end);
  LinkSpeed link;
  if (!IsPlainNumber(number) || !absl::SimpleAtod(std::string(number), &link.bytes_per_second)) {
    return bad;
  }
  double scale = 0;
  for (const Unit& known : kRates) {
    if (unit == known.name) scale = known.bytes;
  }
  link.bytes_per_second *= scale;
  if (link.bytes_per_second < 1e3 || link.bytes_per_second > 1e12) return bad;
  if (comma == std::string_view::npos) return link;
  absl::Duration latency;
  if (!absl::ParseDuration(std::string(text.substr(comma + 1)), &latency) ||
      latency < absl::ZeroDuration() || latency > absl::Seconds(10)) {
    return bad;
  }
  link.latency_s = absl::ToDoubleSeconds(latency);
  return link;
}

std::string FormatBytes(int64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  if (std::abs(value) < 1024) return absl::StrCat(bytes, " B");
  size_t unit = 0;
  value /= 1024;
  // 1023.5 and up would print as 1024.
  while (std::abs(value) >= 1023.5 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", std::abs(value) < 99.95 ? 1 : 0, value, kNames[unit]);
}

std::string FormatCount(double count) {
  static constexpr std::array<const char*, 4> kNames = {"K", "M", "B", "T"};
  if (std::abs(count) < 1000) return absl::StrFormat("%.0f", count);
  size_t unit = 0;
  count /= 1000;
  while (std::abs(count) >= 999.95 && unit + 1 < kNames.size()) {
    count /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", count, kNames[unit]);
}

absl::Status CheckAddress(std::string_view address) {
  constexpr std::string_view kUnix = "unix:";
  if (address.substr(0, kUnix.size()) == kUnix) {
    return CheckSocketPath(address, address.substr(kUnix.size()));
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return BadAddress(address, "the port is missing");
  const std::string_view host = address.substr(0, colon);
  if (host.empty()) return BadAddress(address, "the host is missing");
  const bool bracketed = host.front() == '[' && host.back() == ']' && host.size() > 2;
  if (!bracketed && host.find_first_of(":[]") != std::string_view::npos) {
    return BadAddress(address, "an IPv6 host stands in brackets");
  }
  if (host.find_first_of(" \t\n/") != std::string_view::npos) {
    return BadAddress(address, "the host has characters no host has");
  }
  return CheckPort(address, address.substr(colon + 1));
}

absl::Status CheckTcpAddress(std::string_view address) {
  if (address.substr(0, 5) == "unix:") {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(address), "': a socket will not do here; expected host:port"));
  }
  return CheckAddress(address);
}

}  // namespace headrace
