// What a link from a stage on a device does with the stage's tensors, from the offers that come
// while it connects to the last copy. grpc_link.h has the stream around it.
//
//   cuda_ipc   copied to the slot in the receiver's device memory, then announced
//   nccl       announced, then sent
//   else       copied to the tensor's slot of pinned memory, from which it leaves like any other
//
// Used by the reader while the link connects, by the writer once it is open, by the last to hold it
// at the end: one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "headrace/v1/worker.pb.h"
#include "worker/pipeline/outbox.h"
#include "worker/transport/cuda_ipc.h"
#include "worker/transport/device_copies.h"
#include "worker/transport/nccl_edge.h"

namespace headrace {

class DeviceSender {
 public:
  // `device` must outlive this. INTERNAL: it refuses.
  static absl::StatusOr<std::unique_ptr<DeviceSender>> Open(LinkDevice* device);

  // The receiver's offers. Errors, as PeerMemory::Attach and NcclEdge::Join, say why they cannot be
  // taken up; the link goes on without.
  absl::Status Attach(const v1::DeviceMemory& offer, const LinkPatience& patience);
  // Whether this worker can join at all: NOT_FOUND, FAILED_PRECONDITION as LoadNccl, or another
  // version than the receiver's.
  absl::Status CanJoin(const v1::NcclOffer& offer);
  absl::Status Join(const v1::NcclOffer& offer, const LinkPatience& patience);
  // The receiver has withdrawn what it offered.
  void Withdraw();

  // What was agreed on. They do not change once the link is open, so any thread may ask.
  bool by_ipc() const { return by_ipc_; }
  bool by_nccl() const { return by_nccl_; }
  // "NCCL 2.28.9, another GPU": why the transport is what it is.
  std::string reason() const;

  // Moves the payload. Errors as DeviceCopies::Copy, and INTERNAL for a slot that is not within the
  // receiver's memory.
  absl::Status ToSlot(const Outgoing& outgoing, int64_t slot, const LinkPatience& patience);
  absl::Status SendByNccl(const Outgoing& outgoing, const LinkPatience& patience);
  // Brings it to host memory, and frees its slot on the device.
  absl::Status ToHost(Outgoing* outgoing, const LinkPatience& patience);

  // Gives back what is the receiver's, before the stream ends. NCCL's end is this object's, which
  // comes when the receiver has everything.
  void CloseMemory() { memory_.reset(); }

 private:
  explicit DeviceSender(std::unique_ptr<DeviceCopies> copies) : copies_(std::move(copies)) {}

  const std::unique_ptr<DeviceCopies> copies_;
  const NcclApi* api_ = nullptr;
  bool by_ipc_ = false, by_nccl_ = false;
  std::string peer_device_;
  std::unique_ptr<PeerMemory> memory_;
  std::unique_ptr<NcclEdge> nccl_;
};

}  // namespace headrace
