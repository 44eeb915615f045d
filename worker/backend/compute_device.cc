#include "worker/backend/compute_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status.h"
#include "worker/backend/carved_ops.h"

namespace headrace {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;

class HostDeviceImpl final : public ComputeDevice {
 public:
  HostDeviceImpl(std::unique_ptr<Arena> arena, std::unique_ptr<Ops> ops)
      : arena_(std::move(arena)), ops_(std::move(ops)) {}

  Arena* arena() override { return arena_.get(); }
  Ops* ops() override { return ops_.get(); }
  bool in_host_memory() const override { return true; }
  Arena* staging() override { return nullptr; }
  absl::Status ToDevice(void* device, const void* host, int64_t bytes, std::string_view) override {
    if (bytes > 0) std::memcpy(device, host, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status ToHost(void* host, const void* device, int64_t bytes, std::string_view) override {
    if (bytes > 0) std::memcpy(host, device, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status Wait(absl::Duration) override { return absl::OkStatus(); }
  absl::Status Check() const override { return absl::OkStatus(); }
  bool lost() const override { return false; }

 private:
  const std::unique_ptr<Arena> arena_;
  const std::unique_ptr<Ops> ops_;
};

}  // namespace

std::unique_ptr<ComputeDevice> HostDevice(std::unique_ptr<Arena> arena, std::unique_ptr<Ops> ops) {
  return std::make_unique<HostDeviceImpl>(std::move(arena), std::move(ops));
}

absl::StatusOr<std::unique_ptr<ComputeDevice>> OpenCpu(const DeviceNeeds& needs) {
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, Arena::Create(needs.arena_bytes));
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops,
                            CarveCpuOps(needs.precision, needs.threads, arena.get()));
  return HostDevice(std::move(arena), std::move(ops));
}

absl::Status VisitBytes(ComputeDevice* device, const Tensor& tensor, std::string_view what,
                        const std::function<void(std::string_view bytes)>& visit) {
  const int64_t bytes = tensor.bytes();
  const char* const data = static_cast<const char*>(tensor.data);
  if (device == nullptr || device->in_host_memory()) {
    visit({data, static_cast<size_t>(bytes)});
    return absl::OkStatus();
  }
  std::string piece;
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, bytes - at)));
    HEADRACE_RETURN_IF_ERROR(device->ToHost(piece.data(), data + at,
                                            static_cast<int64_t>(piece.size()), what));
    visit(piece);
  }
  return absl::OkStatus();
}

}  // namespace headrace
