#include "worker/backend/device.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status.h"
#include "worker/backend/cuda_probe.h"
#include "worker/backend/ops.h"

namespace headrace {
namespace {

// What follows "key", blanks and ':' on the first line that starts with it.
std::optional<std::string> FindValue(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const size_t start = line.find_first_not_of(" \t:", key.size());
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return std::nullopt;
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  // "max" is no limit, and no number.
  if (!(file >> word) || !absl::SimpleAtoi(word, &number)) return std::nullopt;
  return number;
}

// The smallest limit of the group at `path` below `mount` and of the groups above it.
int64_t GroupLimit(const std::string& mount, std::string path, const std::string& file) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  while (true) {
    if (path == "/") path.clear();
    if (auto number = ReadNumber(absl::StrCat(mount, path, "/", file))) {
      limit = std::min(limit, *number);
    }
    if (path.empty()) return limit;
    path.resize(path.rfind('/'));
  }
}

// Lines of /proc/self/cgroup are "number:controllers:path"; version 2 has no controllers.
int64_t ControlGroupLimit(const std::string& root) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      limit = std::min(limit, GroupLimit(root + "/sys/fs/cgroup", path, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit = std::min(limit,
                       GroupLimit(root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

constexpr int kOldestForBf16 = 8;  // compute capability

// The index of "cuda" or "cuda:N".
std::optional<int> CudaIndex(const std::string& device) {
  if (device == "cuda") return 0;
  if (device.rfind("cuda:", 0) != 0) return std::nullopt;
  const std::string digits = device.substr(5);
  int index = 0;
  if (digits.find_first_not_of("0123456789") != std::string::npos ||
      !absl::SimpleAtoi(digits, &index)) {
    return std::nullopt;
  }
  return index;
}

// FAILED_PRECONDITION: why not this device, which auto (index 0) and cuda have in common.
absl::StatusOr<DeviceInfo> ChooseCuda(int index, const CudaProbe& probe,
                                      const std::vector<std::string>& modules) {
  if (probe.devices.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("there is no CUDA device: ", probe.why_none));
  }
  if (index >= static_cast<int>(probe.devices.size())) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no CUDA device ", index, ", only ", probe.devices.size()));
  }
  const CudaDeviceName& device = probe.devices[index];
  const std::string who = absl::StrCat("cuda:", index, " (", device.name, ") cannot be computed on");
  const absl::StatusOr<const cuda::Module*> module = OpenCudaModule(modules);
  HEADRACE_RETURN_IF_ERROR(Annotate(module.status(), who));
  cuda::DeviceReport report = {};
  cuda::Failure failure = {};
  if (!(*module)->probe(index, &report, &failure)) {
    return absl::FailedPreconditionError(absl::StrCat(who, ": ", failure.text));
  }
  DeviceInfo info;
  info.kind = "cuda";
  info.name = device.name;
  info.capability = absl::StrCat(report.major, ".", report.minor);
  info.bf16 = report.major >= kOldestForBf16;
  info.available_bytes = report.free_bytes;
  info.open = CudaOpener(*module, index);
  return info;
}

absl::StatusOr<int64_t> HostBytes(const std::string& root) {
  const std::optional<std::string> available = FindValue(root + "/proc/meminfo", "MemAvailable");
  int64_t kilobytes = 0;
  if (!available || !(std::istringstream(*available) >> kilobytes)) {
    return absl::InternalError(
        absl::StrCat(root, "/proc/meminfo does not say how much memory is available"));
  }
  return std::min(kilobytes * 1024, ControlGroupLimit(root));
}

}  // namespace

absl::Status CheckDeviceName(const std::string& device) {
  if (device == "auto" || device == "cpu" || CudaIndex(device)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("device '", device, "' does not exist: expected auto, cpu, cuda, cuda:N or "
                   "sim:KEY=VALUE,…"));
}

absl::StatusOr<DeviceInfo> ProbeDevice(const std::string& device, const std::string& root,
                                       const std::string& cuda_driver,
                                       const std::vector<std::string>& cuda_modules) {
  HEADRACE_RETURN_IF_ERROR(CheckDeviceName(device));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t host_bytes, HostBytes(root));
  DeviceInfo info;
  const std::optional<int> index = CudaIndex(device);
  if (index || device == "auto") {
    absl::StatusOr<DeviceInfo> chosen =
        ChooseCuda(index.value_or(0), ProbeCuda(cuda_driver), cuda_modules);
    if (chosen.ok()) {
      chosen->host_bytes = host_bytes;
      return chosen;
    }
    if (index) return Annotate(chosen.status(), absl::StrCat("device '", device, "'"));
    info.note = std::string(chosen.status().message());
  }
  info.kind = "cpu";
  info.name = FindValue(root + "/proc/cpuinfo", "model name").value_or("cpu");
  info.bf16 = CpuMultipliesBf16();
  info.available_bytes = host_bytes;
  info.host_bytes = host_bytes;
  return info;
}

}  // namespace headrace
