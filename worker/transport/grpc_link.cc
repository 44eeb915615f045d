#include "worker/transport/grpc_link.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/status.h"
#include "worker/transport/link_choice.h"

namespace headrace {
namespace {

// Tensors that may wait for the writer. Credits bound the pipelined kinds; this bounds the others.
constexpr size_t kMaxQueued = 64;
// The receiver is always inside Read, so a frame of 1 MiB that has not left by now never will.
constexpr absl::Duration kStall = absl::Milliseconds(2500);

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

}  // namespace headrace
