// What a worker computes on, as it registers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/compute_device.h"
#include "worker/backend/cuda_device.h"

namespace headrace {

struct DeviceInfo {
  std::string kind;             // "cpu", "cuda"
  std::string name;             // "AMD EPYC 9654 96-Core Processor"; "cpu" where nobody says
  std::string capability;       // "9.0", CUDA's; empty: a CPU
  bool bf16 = false;            // multiplies bf16 by itself
  int64_t available_bytes = 0;  // of the device, what may be taken now
  int64_t host_bytes = 0;       // of the host, without swapping or being killed; a CPU's is the same
  std::string note;             // auto: why it is not a CUDA device; else empty
  DeviceOpener open = OpenCpu;  // for stages
};

// INVALID_ARGUMENT unless `device` is "auto", "cpu", "cuda" or "cuda:N"; says what is expected.
absl::Status CheckDeviceName(const std::string& device);

// `device`: "auto", "cpu", "cuda" or "cuda:N" (the first, or the N-th from 0). A CUDA device is one
// that the driver has, that the module can be opened for, and that has run a kernel of it; auto
// takes it if there is one, else the CPU. The words for why there is none are the same in both.
// The host's memory is the least of MemAvailable and the limits of this process's control groups (v1
// or v2). `root` is put before every path read, `cuda_driver` and `cuda_modules` are the libraries
// asked; tests give their own.
//   INVALID_ARGUMENT     as CheckDeviceName
//   FAILED_PRECONDITION  "cuda": there is no driver, too old a one, no such device, no module, or it
//                        cannot be computed on: says which
//   INTERNAL             /proc/meminfo cannot be read
absl::StatusOr<DeviceInfo> ProbeDevice(
    const std::string& device, const std::string& root = "",
    const std::string& cuda_driver = "libcuda.so.1",
    const std::vector<std::string>& cuda_modules = CudaModulePaths());

}  // namespace headrace
