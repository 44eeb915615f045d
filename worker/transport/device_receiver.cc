#include "worker/transport/device_receiver.h"

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status Broken() { return absl::UnavailableError("the stream broke before its END"); }

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceReceiver>> DeviceReceiver::Open(LinkDevice* device) {
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceCopies> copies, DeviceCopies::Open(device));
  return std::unique_ptr<DeviceReceiver>(new DeviceReceiver(std::move(copies)));
}

absl::Status DeviceReceiver::Agree(const DevicePaths& paths, const Slot& place,
                                   const Greeting& greeting, std::string* why_not) {
  std::string withdrawn;  // what the sender must hear of with the next message
  if (paths.cuda_ipc) {
    HEADRACE_ASSIGN_OR_RETURN(withdrawn, OfferMemory(place, greeting));
    by_ipc_ = withdrawn.empty();
    if (by_ipc_) return absl::OkStatus();
    withdrawn = absl::StrCat("cuda_ipc: ", withdrawn);
    AddReason(withdrawn, why_not);
  }
  if (paths.nccl) {
    HEADRACE_ASSIGN_OR_RETURN(const std::string not_joined, OfferNccl(withdrawn, greeting));
    if (by_nccl()) return absl::OkStatus();
    AddReason(absl::StrCat("nccl: ", not_joined), why_not);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DeviceReceiver::OfferMemory(const Slot& place,
                                                        const Greeting& greeting) {
  const absl::StatusOr<MemoryOffer> made = MemoryOffer::Make(
      static_cast<char*>(place.data()), place.bytes(), copies_.get(), greeting.patience);
  if (!made.ok()) return TextOf(made.status());
  v1::StreamTensorsResponse offer;
  *offer.mutable_device_memory() = made->message();
  if (!greeting.write(offer)) return Broken();
  HEADRACE_ASSIGN_OR_RETURN(const std::string not_attached, greeting.read());
  if (!not_attached.empty()) return not_attached;
  return TextOf(made->Check(greeting.patience));
}

absl::StatusOr<std::string> DeviceReceiver::OfferNccl(const std::string& withdrawn,
                                                      const Greeting& greeting) {
  const absl::StatusOr<const NcclApi*> api = LoadNccl();
  if (!api.ok()) return absl::StrCat("at the receiver: ", api.status().message());
  const absl::StatusOr<std::string> id = NewNcclId(**api);
  if (!id.ok()) return TextOf(id.status());
  v1::StreamTensorsResponse offer;
  offer.mutable_nccl()->set_unique_id(*id);
  offer.mutable_nccl()->set_version((*api)->version);
  offer.set_not_shared(withdrawn);
  if (!greeting.write(offer)) return Broken();
  HEADRACE_ASSIGN_OR_RETURN(const std::string will_not_join, greeting.read());
  if (!will_not_join.empty()) return absl::StrCat("at the sender: ", will_not_join);
  nccl_ = std::make_unique<NcclEdge>(*api, copies_.get(), NcclEdge::Role::kReceiver);
  return JoinNccl(*id, greeting);
}

// On a thread of its own, so that this one hears what becomes of the sender meanwhile.
absl::StatusOr<std::string> DeviceReceiver::JoinNccl(const std::string& id,
                                                     const Greeting& greeting) {
  std::atomic<bool> given_up = false;
  LinkPatience patience = greeting.patience;
  patience.over = [&]() -> absl::Status {
    if (given_up) return absl::CancelledError("the sender has given up");
    return greeting.patience.over();
  };
  absl::Status joined;
  std::thread joining([&] {
    joined = nccl_->Join(id, patience);
    if (joined.ok()) return;
    v1::StreamTensorsResponse withdrawal;
    withdrawal.set_not_shared(absl::StrCat("nccl: ", joined.message()));
    greeting.write(withdrawal);  // the answer to it says if that failed
  });
  const absl::StatusOr<std::string> at_sender = greeting.read();
  if (!at_sender.ok() || !at_sender->empty()) given_up = true;
  joining.join();
  HEADRACE_RETURN_IF_ERROR(at_sender.status());
  if (!joined.ok() && !absl::IsCancelled(joined)) return TextOf(joined);
  if (at_sender->empty()) return TextOf(joined);
  nccl_.reset();
  return absl::StrCat("at the sender: ", *at_sender);
}

absl::Status DeviceReceiver::Land(Received* received, const LinkPatience& patience) {
  HEADRACE_RETURN_IF_ERROR(copies_->AfterCompute());
  HEADRACE_RETURN_IF_ERROR(copies_->Copy(received->slot.data(), received->tensor.data,
                                         received->tensor.bytes(), -1, patience));
  received->tensor.data = received->slot.data();
  received->staged = Slot();
  return absl::OkStatus();
}

absl::Status DeviceReceiver::ReceiveByNccl(Received* received, const LinkPatience& patience) {
  if (!by_nccl()) {
    return absl::FailedPreconditionError("announced to come by NCCL, which was not agreed");
  }
  received->tensor.data = received->slot.data();
  received->staged = Slot();
  return nccl_->Receive(received->tensor.data, received->tensor.bytes(), patience);
}

int64_t DeviceReceiver::MarkSlot() const {
  DeviceFailure failure;
  return copies_->device()->Mark(&failure);
}

bool DeviceReceiver::SlotIsFree(int64_t mark) const {
  DeviceFailure failure;
  return mark >= 0 && copies_->device()->LookAtMark(mark, &failure) > 0;
}

}  // namespace headrace
