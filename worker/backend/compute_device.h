// Where one stage's tensors lie and what computes on them: its memory, its ops, and the way of bytes
// between host and device. Everything in a worker that reads or writes a tensor goes through one of
// these; only ops look at a tensor's memory themselves.
//
//   CPU, simulated   tensors lie in memory of this process: nothing needs to be copied, and where
//                    in_host_memory() says so nobody does
//   CUDA             tensors lie in the device's memory; ops are put on a stream and return at once;
//                    what travels passes through staging(), which is pinned
//
// Used by the stage's thread, but for the arenas, which are thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "plan/precision.h"
#include "worker/backend/arena.h"
#include "worker/backend/link_device.h"
#include "worker/backend/ops.h"

namespace headrace {

class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  // All memory of the stage, on the device. Lives as long as the device.
  virtual Arena* arena() = 0;
  virtual Ops* ops() = 0;
  // Tensors may be read and written where they lie.
  virtual bool in_host_memory() const = 0;
  // Host memory for what comes and goes; null where tensors lie in host memory themselves.
  virtual Arena* staging() = 0;
  // Host memory that cannot be swapped out, as the device copies from and to it by itself.
  virtual int64_t pinned_bytes() const { return 0; }

  // Copy behind what the ops were told so far, and wait for it. `what` names the tensor in errors.
  // Errors as Check, or
  //   DEADLINE_EXCEEDED  the device did not get to it in a minute; it counts as lost then
  virtual absl::Status ToDevice(void* device, const void* host, int64_t bytes,
                                std::string_view what) = 0;
  virtual absl::Status ToHost(void* host, const void* device, int64_t bytes,
                              std::string_view what) = 0;
  // Waits until the device has done what it was told, by links that are gone too, even if something
  // has failed before. Errors as ToDevice.
  virtual absl::Status Wait(absl::Duration timeout) = 0;

  // What failed first, if anything did: names the op or the copy, the call and its text. Never
  // waits, so a kernel's own failure may show only later.
  //   INTERNAL  the device cannot do what it was told
  virtual absl::Status Check() const = 0;
  // Nothing can be computed on it any more in this process.
  virtual bool lost() const = 0;
  // What links ask of it; thread-safe, and lives as long as the device. Null: tensors lie in host
  // memory, or pass through it on the stage's own thread.
  virtual LinkDevice* links() { return nullptr; }
};

// What a stage, or a layer that is measured, needs of a device (worker/pipeline/device_needs.h).
struct DeviceNeeds {
  int64_t arena_bytes = 0;  // all kinds together
  Precision precision = Precision::kFp32;
  bool tf32 = false;  // fp32 products of a CUDA device by TF32
  int threads = 1;    // a CPU's
  // Where tensors do not lie in host memory: how much of that what travels takes; and of the arena,
  // what products and other ops take among themselves (plan/cuda_memory.h).
  int64_t staging_bytes = 0, product_bytes = 0, scratch_bytes = 0;
  // Memory that others write what travels to, for the device to read; must outlive it.
  const void* shared = nullptr;
  int64_t shared_bytes = 0;
};

// Takes all of it at once, or nothing.
//   RESOURCE_EXHAUSTED   there is not so much memory: says how much there is
//   FAILED_PRECONDITION  the device cannot compute that
//   UNAVAILABLE          the device is lost to this process
using DeviceOpener =
    std::function<absl::StatusOr<std::unique_ptr<ComputeDevice>>(const DeviceNeeds& needs)>;

// This process's processor.
absl::StatusOr<std::unique_ptr<ComputeDevice>> OpenCpu(const DeviceNeeds& needs);

// Tensors in `arena`, computed on by `ops`; for what is not opened by needs alone.
std::unique_ptr<ComputeDevice> HostDevice(std::unique_ptr<Arena> arena, std::unique_ptr<Ops> ops);

// Calls `visit(bytes)` with all of a tensor's bytes, in order: at once where it lies if that is host
// memory (a null device says so too), else piece by piece. Errors as ToHost.
absl::Status VisitBytes(ComputeDevice* device, const Tensor& tensor, std::string_view what,
                        const std::function<void(std::string_view bytes)>& visit);

}  // namespace headrace
