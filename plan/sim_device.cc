#include "plan/sim_device.h"

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/flags.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr double kMaxFlops = 1e21;
constexpr double kMaxActionS = 3600;
constexpr double kMaxLatencyS = 60;
constexpr double kMinBytesPerSecond = 1;
constexpr double kMaxBytesPerSecond = 1e15;

struct Unit {
  std::string_view name;
  double factor;
};
constexpr std::array<Unit, 6> kCounts = {
    {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}}};
constexpr std::array<Unit, 4> kTimes = {{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
constexpr std::array<Unit, 11> kRates = {{{"bit/s", 0.125},
                                          {"Kbit/s", 125},
                                          {"Mbit/s", 125e3},
                                          {"Gbit/s", 125e6},
                                          {"B/s", 1},
                                          {"KB/s", 1e3},
                                          {"MB/s", 1e6},
                                          {"GB/s", 1e9},
                                          {"KiB/s", 0x1p10},
                                          {"MiB/s", 0x1p20},
                                          {"GiB/s", 0x1p30}}};

absl::Status Bad(std::string_view key, std::string_view value, std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(key), "=", std::string(value),
                                                 "; expected ", std::string(expected)));
}

// A decimal number and one of the units, with nothing between them.
template <size_t N>
absl::StatusOr<double> ParseUnit(std::string_view key, std::string_view value,
                                 const std::array<Unit, N>& units, double low, double high,
                                 std::string_view expected) {
  const size_t end = std::min(value.find_first_not_of("0123456789."), value.size());
  double number = 0;
  if (end == 0 || !absl::SimpleAtod(std::string(value.substr(0, end)), &number)) {
    return Bad(key, value, expected);
  }
  for (const Unit& unit : units) {
    if (value.substr(end) != unit.name) continue;
    const double scaled = number * unit.factor;
    if (!(scaled >= low && scaled <= high)) break;
    return scaled;
  }
  return Bad(key, value, expected);
}

absl::StatusOr<double> ParseSeconds(std::string_view key, std::string_view value, double high) {
  return ParseUnit(
      key, value, kTimes, 0, high,
      absl::StrCat("a time from 0 to ", high, "s with its unit, such as 20ms, 300us or 1.5s"));
}

class SimParser {
 public:
  absl::StatusOr<SimFlag> Parse(std::string_view text) {
    text.remove_prefix(std::min(text.size(), kSimPrefix.size()));
    for (const std::string& part :
         std::vector<std::string>(absl::StrSplit(std::string(text), ',', absl::SkipEmpty()))) {
      HEADRACE_RETURN_IF_ERROR(ParsePart(part));
    }
    return Finish();
  }

 private:
  absl::Status ParsePart(const std::string& part) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' has no value; expected KEY=VALUE, such as action=20ms"));
    }
    const std::string key = part.substr(0, equals), value = part.substr(equals + 1);
    if (!seen_.insert(key).second) {
      return absl::InvalidArgumentError(absl::StrCat(key, " is given twice; expected it once"));
    }
    return ParseKey(key, value);
  }

  absl::Status ParseKey(const std::string& key, const std::string& value) {
    v1::SimDevice& device = flag_.device;
    if (key == "flops") {
      HEADRACE_ASSIGN_OR_RETURN(
          const double flops,
          ParseUnit(key, value, kCounts, 1, kMaxFlops,
                    "operations a second, from 1 up, such as 10T, 500G or 312T"));
      device.set_flops_per_second(flops);
    } else if (key == "action" || key == "forward" || key == "recompute" || key == "backward") {
      HEADRACE_ASSIGN_OR_RETURN(const double seconds, ParseSeconds(key, value, kMaxActionS));
      if (seconds <= 0) return Bad(key, value, "a time above 0");
      if (key == "action") action_s_ = seconds;
      if (key == "forward") device.set_forward_s(seconds);
      if (key == "recompute") device.set_recompute_s(seconds);
      if (key == "backward") device.set_backward_s(seconds);
    } else if (key == "memory") {
      const absl::StatusOr<int64_t> bytes = ParseBytes(value);
      if (!bytes.ok() || *bytes <= 0) return Bad(key, value, "a size above 0, such as 16GiB");
      flag_.memory_bytes = *bytes;
    } else if (key == "link") {
      HEADRACE_ASSIGN_OR_RETURN(
          const double rate,
          ParseUnit(key, value, kRates, kMinBytesPerSecond, kMaxBytesPerSecond,
                    "a rate, from 1B/s up, such as 1Gbit/s, 100Mbit/s or 125MB/s"));
      device.set_wire(true);
      device.set_link_bytes_per_second(rate);
    } else if (key == "latency") {
      HEADRACE_ASSIGN_OR_RETURN(const double seconds, ParseSeconds(key, value, kMaxLatencyS));
      device.set_wire(true);
      device.set_link_latency_s(seconds);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no key '", key,
                       "'; expected flops, action, forward, recompute, backward, memory, link or "
                       "latency"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SimFlag> Finish() {
    v1::SimDevice& device = flag_.device;
    if (device.forward_s() == 0) device.set_forward_s(action_s_);
    if (device.recompute_s() == 0) device.set_recompute_s(action_s_);
    if (device.backward_s() == 0) device.set_backward_s(action_s_);
    HEADRACE_RETURN_IF_ERROR(CheckSim(device));
    return flag_;
  }

  SimFlag flag_;
  double action_s_ = 0;
  std::set<std::string> seen_;
};

double Seconds(double declared_s, const v1::SimDevice& device, double flops) {
  return declared_s > 0 ? declared_s : flops / device.flops_per_second();
}

bool InRange(double value, double high) { return value >= 0 && value <= high; }

std::string FormatSeconds(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%g s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%g ms", seconds * 1e3);
  return absl::StrFormat("%g us", seconds * 1e6);
}

std::string DescribeActions(const v1::SimDevice& device) {
  std::vector<std::string> parts;
  if (device.forward_s() > 0 && device.forward_s() == device.recompute_s() &&
      device.forward_s() == device.backward_s()) {
    return absl::StrCat(FormatSeconds(device.forward_s()), " an action");
  }
  if (device.forward_s() > 0) parts.push_back("forward " + FormatSeconds(device.forward_s()));
  if (device.recompute_s() > 0) parts.push_back("recompute " + FormatSeconds(device.recompute_s()));
  if (device.backward_s() > 0) parts.push_back("backward " + FormatSeconds(device.backward_s()));
  if (parts.size() < 3) parts.push_back(FormatCount(device.flops_per_second()) + "FLOP/s");
  return absl::StrJoin(parts, ", ");
}

}  // namespace

bool IsSimFlag(std::string_view text) {
  return text == "sim" || text.substr(0, kSimPrefix.size()) == kSimPrefix;
}

absl::StatusOr<SimFlag> ParseSimFlag(std::string_view text) {
  absl::StatusOr<SimFlag> flag = SimParser().Parse(text);
  if (!flag.ok()) return Annotate(flag.status(), "sim");
  return flag;
}

std::string DescribeSim(const v1::SimDevice& device) {
  std::string text = absl::StrCat("simulated: ", DescribeActions(device));
  if (!device.wire()) return text;
  absl::StrAppend(&text, ", link");
  if (device.link_bytes_per_second() > 0) {
    absl::StrAppend(&text, " ", FormatCount(device.link_bytes_per_second()), "B/s");
  }
  if (device.link_latency_s() > 0) {
    absl::StrAppend(&text, " + ", FormatSeconds(device.link_latency_s()));
  }
  return text;
}

absl::Status CheckSim(const v1::SimDevice& device) {
  if (!InRange(device.flops_per_second(), kMaxFlops) || !InRange(device.forward_s(), kMaxActionS) ||
      !InRange(device.recompute_s(), kMaxActionS) || !InRange(device.backward_s(), kMaxActionS) ||
      !InRange(device.link_bytes_per_second(), kMaxBytesPerSecond) ||
      !InRange(device.link_latency_s(), kMaxLatencyS)) {
    return absl::InvalidArgumentError("a simulated device with a number out of range");
  }
  const bool all_timed =
      device.forward_s() > 0 && device.recompute_s() > 0 && device.backward_s() > 0;
  if (device.flops_per_second() > 0 || all_timed) return absl::OkStatus();
  const char* const missing = device.forward_s() == 0     ? "forward"
                              : device.recompute_s() == 0 ? "recompute"
                                                          : "backward";
  return absl::InvalidArgumentError(absl::StrCat(
      "a ", missing, " takes no time; expected flops=10T, action=20ms or ", missing, "=20ms"));
}

double SimForwardSeconds(const v1::SimDevice& device, double flops) {
  return Seconds(device.forward_s(), device, flops);
}

double SimRecomputeSeconds(const v1::SimDevice& device, double flops) {
  return Seconds(device.recompute_s(), device, flops);
}

double SimBackwardSeconds(const v1::SimDevice& device, double flops) {
  return Seconds(device.backward_s(), device, flops);
}

double SimLinkSeconds(const v1::SimDevice& device, int64_t bytes) {
  if (!device.wire()) return 0;
  const double rate = device.link_bytes_per_second();
  return device.link_latency_s() + (rate > 0 ? static_cast<double>(bytes) / rate : 0);
}

}  // namespace headrace
