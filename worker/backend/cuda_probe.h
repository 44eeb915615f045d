// Whether this machine has a CUDA device, asked of its driver alone: libcuda.so.1 is opened when
// asked for, so that a worker starts where no CUDA library is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// The oldest driver the backend's toolkit runs on, as CUDA counts versions.
inline constexpr int kOldestCudaDriver = 13000;

struct CudaDeviceName {
  std::string name;  // "NVIDIA H200"
  int64_t memory_bytes = 0;
  int major = 0, minor = 0;  // compute capability
};

struct CudaProbe {
  std::vector<CudaDeviceName> devices;  // empty: `why_none` says why
  std::string why_none;             // a clause: "libcuda.so.1 is not on this machine"
  int driver_version = 0;           // 13000 for 13.0; 0: unknown
};

// Never fails and prints nothing. `library` is opened and stays open; tests give one of their own.
CudaProbe ProbeCuda(const std::string& library = "libcuda.so.1");

// What --probe prints: a line for the driver, one for each device.
std::string Describe(const CudaProbe& probe);

}  // namespace headrace
