// What a GrpcLink does for a stage on a device.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "worker/transport/frame.h"
#include "worker/transport/grpc_link.h"
#include "worker/transport/link_choice.h"

namespace headrace {

LinkPatience GrpcLink::ConnectPatience() {
  return {.deadline = connect_deadline_, .over = [this]() -> absl::Status {
            if (trial_given_up_) return absl::CancelledError("the receiver has given up");
            if (connect_cancellation_ != nullptr && connect_cancellation_->cancelled()) {
              return absl::CancelledError("told to stop while connecting");
            }
            absl::MutexLock lock(&mu_);
            return Over() ? absl::CancelledError("closed") : absl::OkStatus();
          }};
}

absl::StatusOr<bool> GrpcLink::TakeDeviceOffer(const v1::StreamTensorsResponse& message) {
  const bool offers = message.has_device_memory() || message.has_nccl();
  const bool grants = message.activation_credits() > 0 || message.gradient_credits() > 0;
  if (device_ == nullptr) {
    if (offers) return absl::InternalError("device memory or NCCL was offered unasked");
    return false;
  }
  if (offers || grants || !message.not_shared().empty()) {
    AwaitTrial(/*give_up=*/!message.not_shared().empty());
  }
  if (!message.not_shared().empty()) {
    device_->Withdraw();
    if (!grants) why_not_direct_ = message.not_shared();
  }
  if (message.has_device_memory()) {
    if (std::exchange(memory_offered_, true)) return absl::InternalError("memory offered twice");
    Try([this, offer = message.device_memory()] {
      return device_->Attach(offer, ConnectPatience());
    });
  } else if (message.has_nccl()) {
    if (std::exchange(nccl_offered_, true)) return absl::InternalError("NCCL offered twice");
    const absl::Status can = device_->CanJoin(message.nccl());
    Answer(std::string(can.message()));
    if (can.ok()) {
      Try([this, offer = message.nccl()] { return device_->Join(offer, ConnectPatience()); });
    }
  }
  return offers || (!grants && !message.has_shared_memory());
}

// On a thread of its own, so that the reader hears what becomes of the receiver meanwhile.
void GrpcLink::Try(std::function<absl::Status()> trial) {
  trial_ = std::thread([this, trial = std::move(trial)] {
    const absl::Status tried = trial();
    Answer(std::string(tried.message()));
  });
}

void GrpcLink::AwaitTrial(bool give_up) {
  if (!trial_.joinable()) return;
  trial_given_up_ = give_up;
  trial_.join();
  trial_given_up_ = false;
}

bool GrpcLink::WriteFromDevice(Queued queued) {
  Outgoing& outgoing = queued.outgoing;
  const Tag tag = outgoing.tag;
  const LinkPatience patience = {
      .deadline = absl::Now() + context_.copy_timeout, .over = [this]() -> absl::Status {
        absl::MutexLock lock(&mu_);
        return Over() ? absl::CancelledError("the link has ended") : absl::OkStatus();
      }};
  v1::TensorHeader header = HeaderOf(outgoing);
  header.set_length(outgoing.tensor.bytes());
  if (device_->by_nccl()) {
    // The receiver begins when it hears of it; nothing else goes down this stream until both are
    // done.
    header.set_by_nccl(true);
    if (!WriteFrame(EncodeFrame(header), grpc::WriteOptions())) return false;
    const absl::Status sent = device_->SendByNccl(outgoing, patience);
    return sent.ok() || FailFromDevice(tag, sent);
  }
  if (device_->by_ipc() && queued.slot) {
    const absl::Status copied = device_->ToSlot(outgoing, *queued.slot, patience);
    if (!copied.ok()) return FailFromDevice(tag, copied);
    outgoing = Outgoing{};  // its own slot is free
    header.set_slot(*queued.slot);
    return WriteFrame(EncodeFrame(header), grpc::WriteOptions());
  }
  const absl::Status staged = device_->ToHost(&outgoing, patience);
  if (!staged.ok()) return FailFromDevice(tag, staged);
  return WriteInHost(std::move(queued));
}

bool GrpcLink::FailFromDevice(const Tag& tag, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (Over()) return false;
  device_error_ = absl::UnavailableError(
      absl::StrCat("job ", context_.job_id, ": ", ToText(tag), ": ", status.message()));
  client_context_->TryCancel();
  return false;
}

}  // namespace headrace
