// What a worker computes on, as it registers.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace headrace {

struct DeviceInfo {
  std::string kind;   // "cpu"
  std::string name;   // "AMD EPYC 9654 96-Core Processor"; "cpu" where the system does not say
  bool bf16 = false;  // multiplies bf16 by itself
  int64_t available_bytes = 0;  // what may be taken now without swapping or being killed
};

// `device`: "auto" or "cpu". Memory is the least of MemAvailable and the limits of this process's
// control groups (v1 or v2). `root` is put before every path read; tests give a folder of their
// own.
//   INVALID_ARGUMENT  another device; names it and what exists
//   INTERNAL          /proc/meminfo cannot be read
absl::StatusOr<DeviceInfo> ProbeDevice(const std::string& device, const std::string& root = "");

}  // namespace headrace
