#include "worker/transport/device_sender.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<DeviceSender>> DeviceSender::Open(LinkDevice* device) {
  HEADRACE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceCopies> copies, DeviceCopies::Open(device));
  return std::unique_ptr<DeviceSender>(new DeviceSender(std::move(copies)));
}

absl::Status DeviceSender::Attach(const v1::DeviceMemory& offer, const LinkPatience& patience) {
  HEADRACE_ASSIGN_OR_RETURN(memory_, PeerMemory::Attach(offer, copies_.get(), patience));
  peer_device_ = offer.device();
  by_ipc_ = true;
  return absl::OkStatus();
}

absl::Status DeviceSender::CanJoin(const v1::NcclOffer& offer) {
  HEADRACE_ASSIGN_OR_RETURN(api_, LoadNccl());
  if (api_->version == offer.version()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the sender's NCCL is ", NcclVersionText(api_->version), ", the receiver's ",
                   NcclVersionText(static_cast<int>(offer.version()))));
}

absl::Status DeviceSender::Join(const v1::NcclOffer& offer, const LinkPatience& patience) {
  nccl_ = std::make_unique<NcclEdge>(api_, copies_.get(), NcclEdge::Role::kSender);
  HEADRACE_RETURN_IF_ERROR(nccl_->Join(offer.unique_id(), patience));
  by_nccl_ = true;
  return absl::OkStatus();
}

void DeviceSender::Withdraw() {
  by_ipc_ = by_nccl_ = false;
  memory_.reset();
  nccl_.reset();
}

std::string DeviceSender::reason() const {
  if (by_nccl()) return absl::StrCat("NCCL ", NcclVersionText(api_->version), ", different GPUs");
  return peer_device_ == copies_->device()->uuid() ? "both stages are on one GPU"
                                                   : "the GPUs are of one host";
}

absl::Status DeviceSender::ToSlot(const Outgoing& outgoing, int64_t slot,
                                  const LinkPatience& patience) {
  const int64_t bytes = outgoing.tensor.bytes();
  char* const to = memory_->At(slot, bytes);
  if (to == nullptr) {
    return absl::InternalError("a slot that is not within the receiver's memory");
  }
  return copies_->Copy(to, outgoing.tensor.data, bytes, outgoing.mark, patience);
}

absl::Status DeviceSender::SendByNccl(const Outgoing& outgoing, const LinkPatience& patience) {
  return nccl_->Send(outgoing.tensor.data, outgoing.tensor.bytes(), outgoing.mark, patience);
}

absl::Status DeviceSender::ToHost(Outgoing* outgoing, const LinkPatience& patience) {
  HEADRACE_RETURN_IF_ERROR(copies_->Copy(outgoing->staged.data(), outgoing->tensor.data,
                                         outgoing->tensor.bytes(), outgoing->mark, patience));
  outgoing->slot = std::move(outgoing->staged);
  outgoing->tensor.data = outgoing->slot.data();
  return absl::OkStatus();
}

}  // namespace headrace
