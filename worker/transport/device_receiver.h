// What the receiving end of a link does for a stage on a device: offers the sender the ways that do
// without host memory, until one is agreed, and brings what arrived to the device. grpc_service.cc
// has the stream around it.
//
//   cuda_ipc   lies in the device's memory already
//   nccl       is received when its header comes
//   else       copied from pinned memory to its slot, before anybody may take it
//
// Used by the stream's own thread, but for SlotIsFree.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "headrace/v1/worker.pb.h"
#include "worker/pipeline/inbox.h"
#include "worker/transport/cuda_ipc.h"
#include "worker/transport/device_copies.h"
#include "worker/transport/link_choice.h"
#include "worker/transport/nccl_edge.h"

namespace headrace {

// The stream, as long as its ends agree on a way.
struct Greeting {
  // False: the stream is over.
  std::function<bool(const v1::StreamTensorsResponse& offer)> write;
  // The sender's ATTACHED: why not, or nothing. Else why the stream is over.
  std::function<absl::StatusOr<std::string>()> read;
  LinkPatience patience;  // of all of it
};

class DeviceReceiver {
 public:
  // `device` must outlive this. INTERNAL: it refuses.
  static absl::StatusOr<std::unique_ptr<DeviceReceiver>> Open(LinkDevice* device);

  // Offers what `paths` tells to try, in order, until one works. `place` is a slot of the device's
  // that is free until then.
  // Adds to `*why_not` what came to nothing, and why. Errors: the stream's.
  absl::Status Agree(const DevicePaths& paths, const Slot& place, const Greeting& greeting,
                     std::string* why_not);
  bool by_ipc() const { return by_ipc_; }
  bool by_nccl() const { return nccl_ != nullptr && nccl_->ready(); }

  // Brings a tensor that lies in its staged slot to its slot on the device. Errors as
  // DeviceCopies::Copy.
  absl::Status Land(Received* received, const LinkPatience& patience);
  // Receives what the sender has announced. Errors as NcclEdge::Receive; FAILED_PRECONDITION: no
  // such way was agreed.
  absl::Status ReceiveByNccl(Received* received, const LinkPatience& patience);

  // A sender's copy does not wait for this device: what compute still reads must not be its to
  // fill. Stands for now; −1: the device has failed, and nothing is free any more.
  int64_t MarkSlot() const;
  bool SlotIsFree(int64_t mark) const;

 private:
  explicit DeviceReceiver(std::unique_ptr<DeviceCopies> copies) : copies_(std::move(copies)) {}
  // Each says why not, or nothing.
  absl::StatusOr<std::string> OfferMemory(const Slot& place, const Greeting& greeting);
  absl::StatusOr<std::string> OfferNccl(const std::string& withdrawn, const Greeting& greeting);
  absl::StatusOr<std::string> JoinNccl(const std::string& id, const Greeting& greeting);

  const std::unique_ptr<DeviceCopies> copies_;
  bool by_ipc_ = false;
  std::unique_ptr<NcclEdge> nccl_;
};

}  // namespace headrace
