#include "worker/pipeline/device_numbers.h"

#include "common/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<DeviceNumbers>> DeviceNumbers::Create(ComputeDevice* device,
                                                                     int64_t count,
                                                                     std::string_view name) {
  std::unique_ptr<DeviceNumbers> numbers(new DeviceNumbers(device));
  numbers->host_.resize(static_cast<size_t>(count));
  if (device->in_host_memory()) {
    numbers->on_device_ = {numbers->host_.data(), ElementType::kFloat64, {count}};
    return numbers;
  }
  HEADRACE_ASSIGN_OR_RETURN(
      numbers->on_device_,
      device->arena()->Carve(MemoryKind::kWorkspace, name, ElementType::kFloat64, {count}));
  numbers->Clear();
  return numbers;
}

void DeviceNumbers::Clear() {
  if (host_.empty()) return;
  // Two floats of 0 are a double of 0.
  device_.ops()->Zero(on_device_.f32(), 2 * on_device_.elements());
}

absl::StatusOr<const std::vector<double>*> DeviceNumbers::Read() {
  if (!device_.in_host_memory()) {
    HEADRACE_RETURN_IF_ERROR(
        device_.ToHost(host_.data(), on_device_.data, on_device_.bytes(), "losses and norms"));
  }
  return &host_;
}

}  // namespace headrace
