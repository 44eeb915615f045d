// Device memory of another process on the same host (CUDA IPC), and the trial that shows it works.
//
//   receiver                                        sender
//   MemoryOffer: pattern into a free slot
//                ── handle, offset, nonce ──▶       PeerMemory: memory opened, pattern read back
//                                                   its own pattern copied, device to device
//   MemoryOffer::Check: it has come  ◀── ATTACHED ──
//   grants slots, offsets in the memory             copies into them, waits for its own event,
//                                                   then announces the slot on the gRPC stream
//
// No event is shared by processes. A sender that dies leaves the receiver's memory as it is; the
// sender closes what it has opened before it ends its stream, so before the receiver frees it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "headrace/v1/worker.pb.h"
#include "worker/transport/device_copies.h"

namespace headrace {

// The sender's view.
class PeerMemory {
 public:
  // Opens what is offered and tries it. `copies` must outlive this. `offer` is not trusted.
  //   INTERNAL           the device refuses: no access between the two, for one
  //   INVALID_ARGUMENT   an offer that makes no sense, or of more memory than there is
  //   DATA_LOSS          what was opened is not what was meant
  //   DEADLINE_EXCEEDED  and what patience.over says
  static absl::StatusOr<std::unique_ptr<PeerMemory>> Attach(const v1::DeviceMemory& offer,
                                                            DeviceCopies* copies,
                                                            const LinkPatience& patience);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // `length` bytes at `offset`; null if they are not all within it.
  char* At(int64_t offset, int64_t length) const;

 private:
  PeerMemory(LinkDevice* device, char* base, int64_t bytes)
      : device_(device), base_(base), bytes_(bytes) {}
  absl::Status Try(const v1::DeviceMemory& offer, DeviceCopies* copies,
                   const LinkPatience& patience) const;

  LinkDevice* const device_;
  char* const base_;
  const int64_t bytes_;
};

// The receiver's.
class MemoryOffer {
 public:
  // Writes the receiver's pattern to `place`, of `bytes`, which is the link's until Check. Both
  // pointers must outlive this. Errors as DeviceCopies::Copy.
  static absl::StatusOr<MemoryOffer> Make(char* place, int64_t bytes, DeviceCopies* copies,
                                          const LinkPatience& patience);

  const v1::DeviceMemory& message() const { return message_; }
  // Once the sender has attached. DATA_LOSS: nothing came; else as DeviceCopies::Copy.
  absl::Status Check(const LinkPatience& patience) const;

 private:
  MemoryOffer(char* place, DeviceCopies* copies) : place_(place), copies_(copies) {}

  char* place_;
  DeviceCopies* copies_;
  v1::DeviceMemory message_;
};

}  // namespace headrace
