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

namespace headrace {
namespace {

constexpr char kMethod[] = "/headrace.v1.StageService/StreamTensors";
// Tensors that may wait for the writer. Credits bound the pipelined kinds; this bounds the others.
constexpr size_t kMaxQueued = 64;
// The receiver is always inside Read, so a frame of 1 MiB that has not left by now never will.
constexpr absl::Duration kStall = absl::Milliseconds(2500);
// More credits than any plan grants: a peer that says so is broken.
constexpr int64_t kMaxCredits = 1 << 20;

size_t IndexOf(CreditClass credit_class) { return credit_class == CreditClass::kGradient ? 1 : 0; }

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
      to_stage_(static_cast<int>(receiver.stage())),
      address_(receiver.address()),
      name_(absl::StrCat("link to stage ", receiver.stage(), " (worker ", receiver.worker(), ", ",
                         receiver.address(), ")")),
      on_lost_(std::move(on_lost)),
      in_flight_(std::make_shared<BuffersInFlight>()),
      client_context_(std::make_unique<grpc::ClientContext>()) {
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
  const bool paced = credit_class != CreditClass::kNone;
  absl::MutexLock lock(&mu_);
  int64_t& credits = credits_[IndexOf(credit_class)];
  const auto may_go = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return Over() || finishing_ || ((!paced || credits > 0) && queue_.size() < kMaxQueued);
  };
  if (!mu_.AwaitWithDeadline(absl::Condition(&may_go), deadline)) {
    return absl::DeadlineExceededError(
        absl::StrFormat("%s: %s: %s after %.1f s", name_, ToText(outgoing.tag),
                        paced && credits <= 0 ? "no credit, the receiver has not taken what it has"
                                              : "the queue is full",
                        absl::ToDoubleSeconds(absl::Now() - began)));
  }
  if (state_ == State::kLost) return absl::UnavailableError(cause_.message());
  if (state_ == State::kCancelled) return absl::CancelledError(absl::StrCat(name_, ": closed"));
  if (finishing_) {
    return absl::FailedPreconditionError(
        absl::StrCat(name_, ": ", ToText(outgoing.tag), ": sent after Finish"));
  }
  if (paced) --credits;
  outgoing.departure.Start();
  queue_.push_back(std::move(outgoing));
  return absl::OkStatus();
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
  std::deque<Outgoing> dropped;
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

absl::Status GrpcLink::Connect(absl::Time deadline, const Cancellation* cancellation) {
  HEADRACE_ASSIGN_OR_RETURN(Socket socket, Dial(address_, deadline, cancellation));
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
  if (stream_->Write(EncodeFrame(HeaderFor(context_, v1::MESSAGE_KIND_HELLO)))) {
    grpc::ByteBuffer ack;
    while (protocol_error.ok() && stream_->Read(&ack)) {
      connecting.reset();
      protocol_error = TakeAck(ack);
    }
  }
  if (!protocol_error.ok()) client_context_->TryCancel();
  Settle(stream_->Finish(), protocol_error);
}

absl::Status GrpcLink::TakeAck(const grpc::ByteBuffer& ack) {
  grpc::Slice slice;
  v1::StreamTensorsResponse response;
  if (!ack.DumpToSingleSlice(&slice).ok() ||
      !response.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
    return absl::InternalError("an ack that cannot be parsed");
  }
  absl::MutexLock lock(&mu_);
  const std::array<int64_t, 2> returned = {response.activation_credits(),
                                           response.gradient_credits()};
  for (size_t i = 0; i < returned.size(); ++i) {
    if (returned[i] < 0 || returned[i] > kMaxCredits - credits_[i]) {
      return absl::InternalError(absl::StrCat("an ack of ", returned[i], " credits"));
    }
    credits_[i] += returned[i];
  }
  if (state_ == State::kConnecting) state_ = State::kOpen;
  return absl::OkStatus();
}

absl::Status GrpcLink::CauseOf(const grpc::Status& status,
                               const absl::Status& protocol_error) const {
  if (!protocol_error.ok()) return Annotate(protocol_error, name_);
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
  Outgoing outgoing;
  while (NextOutgoing(&outgoing)) {
    if (!WriteTensor(std::move(outgoing))) return;  // the reader learns why
  }
  WriteEnd();
}

bool GrpcLink::NextOutgoing(Outgoing* outgoing) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return Over() || (state_ == State::kOpen && (!queue_.empty() || finishing_));
  };
  mu_.Await(absl::Condition(&ready));
  if (Over() || queue_.empty()) return false;
  *outgoing = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

bool GrpcLink::WriteTensor(Outgoing outgoing) {
  SendBuffer* const buffer = SendBuffer::Create(std::move(outgoing), in_flight_);
  const Tag& tag = buffer->outgoing().tag;
  const Tensor& tensor = buffer->outgoing().tensor;
  v1::TensorHeader header = HeaderFor(context_, tag.kind);
  header.set_step(tag.step);
  header.set_chunk(tag.chunk);
  header.set_micro_batch(tag.micro_batch);
  header.set_element_type(ToProto(tensor.type));
  header.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  const int64_t total = tensor.bytes();
  header.set_total_bytes(total);
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
