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
  std::string note;             // auto: why it is not a CUDA device; else empty
};

// INVALID_ARGUMENT unless `device` is "auto", "cpu", "cuda" or "cuda:N"; says what is expected.
absl::Status CheckDeviceName(const std::string& device);

// `device`: "auto", "cpu", "cuda" or "cuda:N" (the first, or the N-th from 0). Memory is the least
// of MemAvailable and the limits of this process's control groups (v1 or v2). `root` is put before
// every path read, `cuda_driver` is the library asked; tests give their own.
//
// A CUDA device is found and named, but not yet computed on: auto takes the CPU, and "cuda" is
// refused. The words for why are the same in both.
//   INVALID_ARGUMENT     as CheckDeviceName
//   FAILED_PRECONDITION  "cuda": there is none, or no such one, or it cannot be computed on yet
//   INTERNAL             /proc/meminfo cannot be read
absl::StatusOr<DeviceInfo> ProbeDevice(const std::string& device, const std::string& root = "",
                                       const std::string& cuda_driver = "libcuda.so.1");

}  // namespace headrace
