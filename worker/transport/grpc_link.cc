#include "worker/transport/grpc_link.h"

#include <errno.h>
#include <grpcpp/create_channel_posix.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/grpc_status.h"
#include "common/status.h"
#include "worker/transport/crc32c.h"
#include "worker/transport/frame.h"
#include "worker/transport/link_choice.h"

namespace headrace {
namespace {

constexpr char kMethod[] = "/headrace.v1.StageService/StreamTensors";
// Tensors that may wait for the writer. Credits bound the pipelined kinds; this bounds the others.
constexpr size_t kMaxQueued = 64;
// The receiver is always inside Read, so a frame of 1 MiB that has not left by now never will.
constexpr absl::Duration kStall = absl::Milliseconds(2500);
// More credits than any plan grants: a peer that says so is broken.
constexpr int64_t kMaxCredits = 1 << 20;

// No cache holds a tensor of this size until the receiver uses it.
constexpr int64_t kLargeBytes = 256 << 10;

v1::TensorHeader HeaderFor(const LinkContext& context, v1::MessageKind kind) {
  v1::TensorHeader header;
  header.set_job_id(context.job_id);
  header.set_generation(context.generation);
  header.set_from_stage(context.stage);
  header.set_kind(kind);
  return header;
}

// The codes a receiver gives for a reason; any other means that the link itself broke.
bool SaysWhy(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace

GrpcLink::GrpcLink(const LinkContext& context, const v1::Peer& receiver, absl::Time deadline,
                   OnLost on_lost, Cancellation* cancellation)
    : context_(context),
      receiver_(receiver),
      to_stage_(static_cast<int>(receiver.stage())),
      name_(absl::StrCat("link to stage ", receiver.stage(), " (worker ", receiver.worker(), ", ",
                         receiver.address(), ")")),
      on_lost_(std::move(on_lost)),
      in_flight_(std::make_shared<BuffersInFlight>()),
      client_context_(std::make_unique<grpc::ClientContext>()),
      connect_deadline_(deadline),
      connect_cancellation_(cancellation) {
  client_context_->set_initial_metadata_corked(true);  // travels with HELLO
  reader_ = std::thread([this, deadline, cancellation] { RunReader(deadline, cancellation); });
  writer_ = std::thread([this] { RunWriter(); });
}

GrpcLink::~GrpcLink() {
  Cancel();
  Join();
}

absl::Status GrpcLink::AwaitOpen(absl::Time deadline) {
  const absl::Time began = absl::Now();
  absl::MutexLock lock(&mu_);
  const auto decided = [this]()
                           ABSL_SHARED_LOCKS_REQUIRED(mu_) { return state_ != State::kConnecting; };
  if (!mu_.AwaitWithDeadline(absl::Condition(&decided), deadline)) {
    return absl::DeadlineExceededError(absl::StrFormat("%s: no answer to HELLO after %.1f s", name_,
                                                       absl::ToDoubleSeconds(absl::Now() - began)));
  }
  if (state_ == State::kLost) return cause_;
  return absl::OkStatus();
}

absl::Status GrpcLink::Send(Outgoing outgoing, absl::Time deadline) {
  const absl::Time began = absl::Now();
  const CreditClass credit_class = CreditClassOf(outgoing.tag.kind);
  const size_t i = static_cast<size_t>(credit_class);
  absl::MutexLock lock(&mu_);
  const bool paced = IsPaced(credit_class);
  const auto may_go = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return Over() || finishing_ || ((!paced || credits_[i] > 0) && queue_.size() < kMaxQueued);
  };
  if (!mu_.AwaitWithDeadline(absl::Condition(&may_go), deadline)) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "%s: %s: %s after %.1f s", name_, ToText(outgoing.tag),
        paced && credits_[i] <= 0 ? "no credit, the receiver has not taken what it has"
                                  : "the queue is full",
        absl::ToDoubleSeconds(absl::Now() - began)));
  }
  if (state_ == State::kLost) return absl::UnavailableError(cause_.message());
  if (state_ == State::kCancelled) return absl::CancelledError(absl::StrCat(name_, ": closed"));
  if (finishing_) {
    return absl::FailedPreconditionError(
        absl::StrCat(name_, ": ", ToText(outgoing.tag), ": sent after Finish"));
  }
  outgoing.departure.Start();
  Queued queued{std::move(outgoing), std::nullopt};
  if (paced) --credits_[i];
  if (paced && in_place_[i]) {
    queued.slot = slots_[i].front();
    slots_[i].pop_front();
  }
  queue_.push_back(std::move(queued));
  return absl::OkStatus();
}

bool GrpcLink::IsPaced(CreditClass credit_class) const {
  if (credit_class == CreditClass::kNone) return false;
  return credit_class != CreditClass::kTie || in_place_[static_cast<size_t>(credit_class)];
}

v1::LinkInfo GrpcLink::Describe() const {
  v1::LinkInfo link;
  link.set_from_stage(context_.stage);
  link.set_to_stage(to_stage_);
  link.set_address(address_);
  std::string reason = why_not_shared_;
  if (direct()) {
    link.set_transport(device_->by_ipc() ? "cuda_ipc" : "nccl");
    reason = device_->reason();
    AddReason(why_not_direct_, &reason);
  } else if (region_ != nullptr) {
    link.set_transport("shm");
    reason = "both workers are on one host";
    AddReason(why_not_direct_, &reason);
  } else {
    link.set_transport("grpc");
  }
  link.set_reason(reason);
  return link;
}

void GrpcLink::BeginFinish() {
  absl::MutexLock lock(&mu_);
  finishing_ = true;
}

absl::Status GrpcLink::AwaitFinished(absl::Time deadline) {
  const absl::Time began = absl::Now();
  absl::MutexLock lock(&mu_);
  const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Over(); };
  if (!mu_.AwaitWithDeadline(absl::Condition(&over), deadline)) {
    return absl::DeadlineExceededError(absl::StrFormat("%s: %d tensors have not left after %.1f s",
                                                       name_, queue_.size(),
                                                       absl::ToDoubleSeconds(absl::Now() - began)));
  }
  if (state_ == State::kLost) return absl::UnavailableError(cause_.message());
  if (state_ == State::kCancelled) return absl::CancelledError(absl::StrCat(name_, ": closed"));
  return absl::OkStatus();
}

void GrpcLink::CancelIfStalled() {
  absl::MutexLock lock(&mu_);
  if (Over() || absl::Now() - write_began_ < kStall) return;
  stalled_ = true;
  client_context_->TryCancel();
}

void GrpcLink::Cancel() {
  std::deque<Queued> dropped;
  absl::MutexLock lock(&mu_);
  if (!Over()) state_ = State::kCancelled;
  dropped.swap(queue_);
  if (client_context_ == nullptr) return;  // joined
  // gRPC puts the end of a connection off until its last write has left, which may be never.
  if (socket_.valid()) socket_.Shutdown();
  client_context_->TryCancel();
}

void GrpcLink::Join() {
  if (reader_.joinable()) reader_.join();
  if (writer_.joinable()) writer_.join();
  {
    absl::MutexLock lock(&mu_);
    stream_.reset();
    client_context_.reset();  // the call, which keeps what it has not written
    channel_.reset();
  }
  device_.reset();
  AwaitBuffers();
}

// The connection's end is an event like any other, and with our threads gone gRPC may not look for
// events for ten seconds. Any completion queue being waited on makes it look.
void GrpcLink::AwaitBuffers() {
  constexpr absl::Duration kLook = absl::Milliseconds(5);
  if (in_flight_->AwaitNone(kLook)) return;
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  do {
    queue.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + kLook));
  } while (!in_flight_->AwaitNone(kLook));
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

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

void GrpcLink::RunReader(absl::Time deadline, Cancellation* cancellation) {
  std::optional<Cancellation::Call> connecting;
  connecting.emplace(cancellation, client_context_.get());
  absl::Status protocol_error = Connect(deadline, cancellation);
  if (!protocol_error.ok()) return Settle(grpc::Status::OK, protocol_error);
  protocol_error = Converse(&connecting);
  if (!protocol_error.ok()) client_context_->TryCancel();
  AwaitTrial(/*give_up=*/true);
  Settle(stream_->Finish(), protocol_error);
}

absl::Status GrpcLink::Converse(std::optional<Cancellation::Call>* connecting) {
  v1::TensorHeader hello = HeaderFor(context_, v1::MESSAGE_KIND_HELLO);
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
  v1::TensorHeader attached = HeaderFor(context_, v1::MESSAGE_KIND_ATTACHED);
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

absl::Status GrpcLink::CauseOf(const grpc::Status& status,
                               const absl::Status& protocol_error) const {
  if (!device_error_.ok()) return Annotate(device_error_, name_);
  if (!protocol_error.ok()) return Annotate(protocol_error, name_);
  if (bad_slot_) {
    return absl::InternalError(
        absl::StrCat(name_, ": a slot that is not within the receiver's memory"));
  }
  if (stalled_) {
    return absl::UnavailableError(
        absl::StrFormat("%s: took no bytes for %.1f s", name_, absl::ToDoubleSeconds(kStall)));
  }
  const absl::Status said = FromGrpc(status);
  if (SaysWhy(said.code())) return Annotate(said, name_);
  if (said.ok() || said.code() == absl::StatusCode::kCancelled) {
    return absl::UnavailableError(absl::StrCat(name_, ": the receiver ended the stream"));
  }
  return absl::UnavailableError(absl::StrCat(name_, ": ", said.message()));
}

void GrpcLink::Settle(const grpc::Status& status, const absl::Status& protocol_error) {
  absl::Status cause;
  {
    absl::MutexLock lock(&mu_);
    if (state_ == State::kCancelled) return;
    if (status.ok() && end_written_ && protocol_error.ok()) {
      state_ = State::kFinished;
      return;
    }
    const bool was_open = state_ == State::kOpen;
    cause_ = CauseOf(status, protocol_error);
    state_ = State::kLost;
    if (!was_open) return;
    cause = cause_;
  }
  on_lost_(to_stage_, std::move(cause));
}

void GrpcLink::RunWriter() {
  Queued next;
  while (NextQueued(&next)) {
    const bool on_device = device_ != nullptr && next.outgoing.inline_bytes.empty();
    const bool open = on_device ? WriteFromDevice(std::move(next)) : WriteInHost(std::move(next));
    if (!open) return;  // the reader learns why
  }
  if (device_ != nullptr) device_->CloseMemory();
  WriteEnd();
}

bool GrpcLink::WriteInHost(Queued queued) {
  return queued.slot ? WriteInPlace(std::move(queued.outgoing), *queued.slot)
                     : WriteTensor(std::move(queued.outgoing));
}

bool GrpcLink::NextQueued(Queued* queued) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return Over() || (state_ == State::kOpen && (!queue_.empty() || finishing_));
  };
  mu_.Await(absl::Condition(&ready));
  if (Over() || queue_.empty()) return false;
  *queued = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

v1::TensorHeader GrpcLink::HeaderOf(const Outgoing& outgoing) const {
  const Tag& tag = outgoing.tag;
  v1::TensorHeader header = HeaderFor(context_, tag.kind);
  header.set_step(tag.step);
  header.set_chunk(tag.chunk);
  header.set_micro_batch(tag.micro_batch);
  header.set_element_type(ToProto(outgoing.tensor.type));
  header.mutable_shape()->Add(outgoing.tensor.shape.begin(), outgoing.tensor.shape.end());
  header.set_total_bytes(outgoing.tensor.bytes());
  return header;
}

bool GrpcLink::WriteTensor(Outgoing outgoing) {
  v1::TensorHeader header = HeaderOf(outgoing);
  SendBuffer* const buffer = SendBuffer::Create(std::move(outgoing), in_flight_);
  const Tensor& tensor = buffer->outgoing().tensor;
  const int64_t total = tensor.bytes();
  bool open = true;
  for (int64_t offset = 0; open && offset < total; offset += kChunkBytes) {
    const int64_t length = std::min(kChunkBytes, total - offset);
    header.set_offset(offset);
    header.set_length(length);
    header.set_crc32c(ExtendCrc32c(0, static_cast<const char*>(tensor.data) + offset,
                                   static_cast<size_t>(length)));
    open = WriteFrame(EncodeFrame(header, buffer->SliceOf(offset, length)), grpc::WriteOptions());
  }
  buffer->Unref();
  return open;
}

bool GrpcLink::WriteInPlace(Outgoing outgoing, int64_t slot) {
  const int64_t total = outgoing.tensor.bytes();
  char* const to = region_->At(slot, total);
  if (to == nullptr) {
    absl::MutexLock lock(&mu_);
    bad_slot_ = true;
    client_context_->TryCancel();
    return false;
  }
  v1::TensorHeader header = HeaderOf(outgoing);
  header.set_slot(slot);
  header.set_length(total);
  header.set_crc32c(CopyAndExtendCrc32c(0, to, outgoing.tensor.data, static_cast<size_t>(total),
                                        total >= kLargeBytes));
  outgoing = Outgoing{};  // its own slot is free
  return WriteFrame(EncodeFrame(header), grpc::WriteOptions());
}

bool GrpcLink::WriteFrame(const grpc::ByteBuffer& frame, grpc::WriteOptions options) {
  {
    absl::MutexLock lock(&mu_);
    write_began_ = absl::Now();
  }
  const bool open = stream_->Write(frame, options);
  absl::MutexLock lock(&mu_);
  write_began_ = absl::InfiniteFuture();
  return open;
}

void GrpcLink::WriteEnd() {
  {
    absl::MutexLock lock(&mu_);
    if (Over()) return;
    end_written_ = true;
  }
  WriteFrame(EncodeFrame(HeaderFor(context_, v1::MESSAGE_KIND_END)),
             grpc::WriteOptions().set_last_message());
}

}  // namespace headrace
