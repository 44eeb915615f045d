// How a GrpcLink opens: dials, says HELLO, takes up what the receiver offers and the credits it
// gives.
#include <errno.h>
#include <grpcpp/create_channel_posix.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/status.h"
#include "worker/transport/frame.h"
#include "worker/transport/grpc_link.h"
#include "worker/transport/link_choice.h"

namespace headrace {
namespace {

constexpr char kMethod[] = "/headrace.v1.StageService/StreamTensors";
// More credits than any plan grants: a peer that says so is broken.
constexpr int64_t kMaxCredits = 1 << 20;

}  // namespace

absl::StatusOr<Socket> GrpcLink::DialReceiver(absl::Time deadline,
                                              const Cancellation* cancellation) {
  const v1::HostInfo& host = receiver_.host();
  if (!context_.host.empty() && host.id() == context_.host && !host.local_address().empty()) {
    absl::StatusOr<Socket> socket = Dial(host.local_address(), deadline, cancellation);
    if (socket.ok()) {
      address_ = host.local_address();
      return socket;
    }
  }
  address_ = receiver_.address();
  return Dial(address_, deadline, cancellation);
}

absl::Status GrpcLink::Connect(absl::Time deadline, const Cancellation* cancellation) {
  HEADRACE_ASSIGN_OR_RETURN(Socket socket, DialReceiver(deadline, cancellation));
  const int fd = socket.Duplicate();
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot connect");
  channel_ = grpc::CreateCustomInsecureChannelFromFd(address_, fd,
                                                     MakeChannelArguments(ChannelUse::kTensors));
  const grpc::internal::RpcMethod method(kMethod, grpc::internal::RpcMethod::BIDI_STREAMING,
                                         channel_);
  stream_.reset(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel_.get(), method, client_context_.get()));
  absl::MutexLock lock(&mu_);
  if (Over()) return absl::CancelledError("closed");
  socket_ = std::move(socket);
  return absl::OkStatus();
}

absl::Status GrpcLink::Converse(std::optional<Cancellation::Call>* connecting) {
  v1::TensorHeader hello = HeaderFor(v1::MESSAGE_KIND_HELLO);
  if (context_.transport != v1::TRANSPORT_GRPC) hello.set_host(context_.host);
  if (context_.device != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(device_, DeviceSender::Open(context_.device));
    if (context_.transport != v1::TRANSPORT_GRPC) hello.set_device(context_.device->uuid());
  }
  if (!stream_->Write(EncodeFrame(hello))) return absl::OkStatus();  // Finish says why
  grpc::ByteBuffer message;
  bool offered = false;
  while (stream_->Read(&message)) {
    grpc::Slice slice;
    v1::StreamTensorsResponse ack;
    if (!message.DumpToSingleSlice(&slice).ok() ||
        !ack.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
      return absl::InternalError("an ack that cannot be parsed");
    }
    if (!offered) {
      HEADRACE_ASSIGN_OR_RETURN(const bool taken, TakeDeviceOffer(ack));
      if (taken) continue;
    }
    if (ack.has_shared_memory()) {
      if (std::exchange(offered, true)) return absl::InternalError("memory offered twice");
      HEADRACE_RETURN_IF_ERROR(Attach(ack.shared_memory()));
      continue;
    }
    offered = true;  // too late for one
    connecting->reset();
    HEADRACE_RETURN_IF_ERROR(TakeAck(ack));
  }
  return absl::OkStatus();
}

absl::Status GrpcLink::Attach(const v1::SharedMemory& offer) {
  absl::StatusOr<std::unique_ptr<SharedRegion>> region =
      absl::InvalidArgumentError("memory was offered that was not asked for");
  if (AllowsSharedMemory(context_.transport) && !context_.host.empty()) {
    region = SharedRegion::Attach({offer.process(), offer.file(), offer.bytes(), offer.nonce()});
  }
  if (region.ok()) {
    region_ = *std::move(region);
  } else {
    why_not_shared_ = absl::StrCat("worker ", receiver_.worker(),
                                   "'s memory cannot be attached: ", region.status().message());
  }
  Answer(why_not_shared_);
  return absl::OkStatus();
}

void GrpcLink::Answer(const std::string& not_attached) {
  v1::TensorHeader attached = HeaderFor(v1::MESSAGE_KIND_ATTACHED);
  attached.set_not_attached(not_attached.substr(0, 1024));
  stream_->Write(EncodeFrame(attached));  // Read says if that failed
}

absl::Status GrpcLink::TakeAck(const v1::StreamTensorsResponse& ack) {
  absl::MutexLock lock(&mu_);
  HEADRACE_RETURN_IF_ERROR(
      TakeSlots(CreditClass::kActivation, ack.activation_credits(), ack.activation_slots()));
  HEADRACE_RETURN_IF_ERROR(
      TakeSlots(CreditClass::kGradient, ack.gradient_credits(), ack.gradient_slots()));
  HEADRACE_RETURN_IF_ERROR(TakeSlots(CreditClass::kTie, ack.tie_slots_size(), ack.tie_slots()));
  return state_ == State::kConnecting ? Open(ack) : absl::OkStatus();
}

absl::Status GrpcLink::TakeSlots(CreditClass credit_class, int64_t credits,
                                 const google::protobuf::RepeatedField<int64_t>& slots) {
  const size_t i = static_cast<size_t>(credit_class);
  if (credits < 0 || credits > kMaxCredits - credits_[i]) {
    return absl::InternalError(absl::StrCat("an ack of ", credits, " credits"));
  }
  if (slots.empty() && !in_place_[i]) {
    credits_[i] += credits;
    return absl::OkStatus();
  }
  const bool shares = region_ != nullptr || (device_ != nullptr && device_->by_ipc());
  if (!shares || slots.size() != credits || (!in_place_[i] && state_ != State::kConnecting)) {
    return absl::InternalError(
        absl::StrCat("an ack of ", credits, " credits and ", slots.size(), " slots"));
  }
  in_place_[i] = true;
  credits_[i] += credits;
  slots_[i].insert(slots_[i].end(), slots.begin(), slots.end());
  return absl::OkStatus();
}

absl::Status GrpcLink::Open(const v1::StreamTensorsResponse& ack) {
  const std::string& not_shared = ack.not_shared();
  const v1::Transport transport = context_.transport;
  if (region_ == nullptr && !direct() && why_not_shared_.empty()) {
    if (transport == v1::TRANSPORT_GRPC) {
      why_not_shared_ = "pipeline.transport is grpc";
    } else if (!not_shared.empty() && (device_ != nullptr || !AllowsSharedMemory(transport))) {
      why_not_shared_ = not_shared;
    } else if (context_.host.empty() || receiver_.host().id() != context_.host) {
      why_not_shared_ = "the workers are on different hosts";
    } else {
      why_not_shared_ = not_shared.empty() ? "the receiver offers no memory" : not_shared;
    }
  }
  const bool as_forced = (transport == v1::TRANSPORT_SHM && region_ != nullptr) ||
                         (transport == v1::TRANSPORT_CUDA_IPC && direct() && device_->by_ipc()) ||
                         (transport == v1::TRANSPORT_NCCL && direct() && device_->by_nccl());
  if (IsForced(transport) && !as_forced && !ack.numbers_only()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "pipeline.transport is ", TransportName(transport), ", but ", why_not_shared_));
  }
  state_ = State::kOpen;
  return absl::OkStatus();
}

}  // namespace headrace
