// Numbers that ops answer with, losses and norms: they lie in the device's memory until somebody
// reads them all at once, for every read waits for the device. Where that is host memory nothing is
// copied.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/compute_device.h"

namespace headrace {

// Owned by the compute thread.
class DeviceNumbers {
 public:
  // `count` of them; carves AlignUp(8 · count) of workspace where tensors do not lie in host memory.
  // `device` must outlive this.
  //   RESOURCE_EXHAUSTED  as Arena::Carve
  static absl::StatusOr<std::unique_ptr<DeviceNumbers>> Create(ComputeDevice* device, int64_t count,
                                                               std::string_view name);

  // Where ops find them.
  double* data() { return on_device_.f64(); }
  // All 0, before what ops are told from now on.
  void Clear();
  // Waits until ops have answered. Valid until the next call. Errors as ComputeDevice::ToHost.
  absl::StatusOr<const std::vector<double>*> Read();

 private:
  explicit DeviceNumbers(ComputeDevice* device) : device_(*device) {}

  ComputeDevice& device_;
  std::vector<double> host_;
  Tensor on_device_;  // host_, where that will do
};

}  // namespace headrace
