// For tests: a device whose memory is not the host's, as a GPU's, with ops that compute what the
// CPU's do. So a pipeline on it must give the CPU's bits, if every tensor takes the way it should.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "worker/backend/compute_device.h"

namespace headrace::testing {

class DistantDevice final : public ComputeDevice {
 public:
  // What happens on it. The first `good_copies` succeed; after that it is lost.
  struct Log {
    int copies_in = 0, copies_out = 0;
    int good_copies = 1 << 30;
    DeviceNeeds needs;
    const ComputeDevice* device = nullptr;
  };

  static DeviceOpener Opener(Log* log) {
    return [log](const DeviceNeeds& needs) -> absl::StatusOr<std::unique_ptr<ComputeDevice>> {
      auto device = std::make_unique<DistantDevice>(log);
      device->arena_ = Arena::Over(device->Take(needs.arena_bytes), needs.arena_bytes);
      device->staging_ = Arena::Over(device->Take(needs.staging_bytes), needs.staging_bytes);
      for (const int64_t bytes : {needs.product_bytes, needs.scratch_bytes}) {
        HEADRACE_RETURN_IF_ERROR(device->arena_
                                     ->Carve(MemoryKind::kWorkspace, "ops' own",
                                             ElementType::kFloat32, {bytes / 4})
                                     .status());
      }
      device->ops_ = CreateCpuOps(1);
      log->needs = needs;
      log->device = device.get();
      return device;
    };
  }

  explicit DistantDevice(Log* log) : log_(*log) {}

  Arena* arena() override { return arena_.get(); }
  Ops* ops() override { return ops_.get(); }
  bool in_host_memory() const override { return false; }
  Arena* staging() override { return staging_.get(); }
  absl::Status ToDevice(void* device, const void* host, int64_t bytes,
                        std::string_view what) override {
    ++log_.copies_in;
    return Copy(device, host, bytes, what);
  }
  absl::Status ToHost(void* host, const void* device, int64_t bytes,
                      std::string_view what) override {
    ++log_.copies_out;
    return Copy(host, device, bytes, what);
  }
  absl::Status Wait(absl::Duration) override { return Check(); }
  absl::Status Check() const override {
    if (!lost()) return absl::OkStatus();
    return absl::InternalError("the distant device is lost");
  }
  bool lost() const override { return log_.copies_in + log_.copies_out > log_.good_copies; }

 private:
  char* Take(int64_t bytes) {
    constexpr int64_t kAlign = 256;
    memory_.emplace_back(static_cast<size_t>(bytes + kAlign), '\0');
    char* const start = memory_.back().data();
    return start + (kAlign - reinterpret_cast<intptr_t>(start) % kAlign) % kAlign;
  }
  absl::Status Copy(void* to, const void* from, int64_t bytes, std::string_view what) {
    if (lost()) return Annotate(Check(), what);
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  Log& log_;
  std::vector<std::vector<char>> memory_;
  std::unique_ptr<Arena> arena_, staging_;
  std::unique_ptr<Ops> ops_;
};

}  // namespace headrace::testing
