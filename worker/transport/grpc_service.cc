#include "worker/transport/grpc_service.h"

#include <array>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/status.h"
#include "worker/transport/frame.h"
#include "worker/transport/incoming_stage.h"
#include "worker/transport/tensor_assembler.h"

namespace headrace {
namespace {

using RawStream = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

// How long the last acks may take once the stream has ended.
constexpr absl::Duration kLastAcks = absl::Milliseconds(500);

// Between two looks for a free slot that is due: whoever took the last tensor still uses it.
constexpr absl::Duration kLookForSlot = absl::Milliseconds(1);

using PerClass = std::array<int64_t, kNumCreditClasses>;

// What goes back to the sender in one ack.
struct Grant {
  PerClass credits = {};
  std::array<std::vector<int64_t>, kNumCreditClasses> slots;  // in shared memory, of those credits

  bool empty() const { return credits == PerClass{}; }
};

// One call of StreamTensors, from HELLO to END.
class GrpcIncomingStream final : public IncomingStream {
 public:
  GrpcIncomingStream(StageDirectory* directory, absl::Duration hello_timeout,
                     grpc::ServerContext* context, RawStream* stream)
      : directory_(directory), hello_timeout_(hello_timeout), context_(context), stream_(stream) {}

  grpc::Status Run() {
    std::thread acks([this] { WriteAcks(); });
    const absl::Status status = Serve();
    StopAcks();
    acks.join();
    return ToGrpc(status);
  }

  void ReturnCredit(CreditClass credit_class) override {
    const size_t i = static_cast<size_t>(credit_class);
    absl::MutexLock lock(&mu_);
    if (credit_class == CreditClass::kTie && pools_[i] == nullptr) return;  // not paced by us
    --held_[i];
    ++to_return_[i];
  }

  void Cancel() override { context_->TryCancel(); }

 private:
  absl::Status Serve();
  absl::StatusOr<Frame> ReadFrame();
  absl::Status Greet(const IncomingStage& stage, const v1::TensorHeader& hello);
  // Whether the sender has attached the region.
  absl::StatusOr<bool> Offer(const IncomingStage& stage, int64_t from_stage);
  absl::Status Receive(IncomingStage* stage, int from_stage);
  absl::Status Admit(const Tag& tag);
  absl::StatusOr<Slot> Claim(const Tag& tag, int64_t offset);
  void Open(const IncomingStage& stage, int64_t from_stage, bool shares, std::string not_shared);
  void WriteAcks();
  bool AwaitHello();
  // Waits for credits to return. False: the stream is over.
  bool NextGrant(Grant* grant);
  Grant TakeGrant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WriteAck(const Grant& grant, std::string not_shared);
  bool Write(const v1::StreamTensorsResponse& response);
  void DropSlots();
  void StopAcks();

  StageDirectory* const directory_;
  const absl::Duration hello_timeout_;
  grpc::ServerContext* const context_;
  RawStream* const stream_;

  absl::Mutex mu_;
  int credits_ ABSL_GUARDED_BY(mu_) = 0;         // per class; 0 until the sender was greeted
  std::string not_shared_ ABSL_GUARDED_BY(mu_);  // for the first ack
  PerClass held_ ABSL_GUARDED_BY(mu_) = {};      // tensors begun and not taken
  PerClass to_return_ ABSL_GUARDED_BY(mu_) = {};
  // Of classes whose tensors come in shared memory: their pools, and the slots that are the
  // sender's to fill, by offset in the region.
  const SharedRegion* region_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::array<Pool*, kNumCreditClasses> pools_ ABSL_GUARDED_BY(mu_) = {};
  std::array<std::map<int64_t, Slot>, kNumCreditClasses> granted_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool acks_done_ ABSL_GUARDED_BY(mu_) = false;
};

absl::StatusOr<Frame> GrpcIncomingStream::ReadFrame() {
  grpc::ByteBuffer message;
  if (!stream_->Read(&message)) return absl::UnavailableError("the stream broke before its END");
  return DecodeFrame(std::move(message));
}

absl::Status GrpcIncomingStream::Serve() {
  HEADRACE_ASSIGN_OR_RETURN(const Frame hello, ReadFrame());
  const v1::TensorHeader& header = hello.header;
  if (header.kind() != v1::MESSAGE_KIND_HELLO) {
    return absl::InvalidArgumentError(
        absl::StrCat("first frame of kind ", KindName(header.kind()), ", expected hello"));
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::shared_ptr<IncomingStage> stage,
                            directory_->Find(header.job_id(), header.generation()));
  HEADRACE_RETURN_IF_ERROR(stage->Join(header.from_stage(), this));
  // From here the stream is the stage's own: what goes wrong is the stage's loss.
  const int from_stage = static_cast<int>(header.from_stage());
  absl::Status status = Greet(*stage, header);
  if (status.ok()) status = Receive(stage.get(), from_stage);
  status = Annotate(status, absl::StrCat("stream from stage ", from_stage));
  DropSlots();
  if (status.ok()) {
    stage->inbox()->End(from_stage);
  } else {
    stage->inbox()->Fail(from_stage, status);
  }
  stage->Part(from_stage);
  return status;
}

absl::Status GrpcIncomingStream::Greet(const IncomingStage& stage, const v1::TensorHeader& hello) {
  std::string not_shared;
  if (hello.host() != stage.context().host) {
    not_shared = "the workers are on different hosts";
  } else if (stage.shared().region == nullptr) {
    not_shared = stage.shared().why_none;
  }
  bool shares = false;
  if (!hello.host().empty() && not_shared.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(shares, Offer(stage, hello.from_stage()));
  }
  Open(stage, hello.from_stage(), shares, hello.host().empty() ? "" : not_shared);
  return absl::OkStatus();
}

absl::StatusOr<bool> GrpcIncomingStream::Offer(const IncomingStage& stage, int64_t from_stage) {
  const SharedRegion::Name& name = stage.shared().region->name();
  v1::StreamTensorsResponse offer;
  offer.mutable_shared_memory()->set_process(name.process);
  offer.mutable_shared_memory()->set_file(name.file);
  offer.mutable_shared_memory()->set_bytes(name.bytes);
  offer.mutable_shared_memory()->set_nonce(name.nonce);
  // The thread that writes acks waits until the sender was greeted.
  if (!Write(offer)) return absl::UnavailableError("the stream broke before its END");
  HEADRACE_ASSIGN_OR_RETURN(const Frame answer, ReadFrame());
  if (answer.header.kind() != v1::MESSAGE_KIND_ATTACHED ||
      answer.header.from_stage() != from_stage) {
    return absl::InvalidArgumentError(absl::StrCat("answer to an offer of memory of kind ",
                                                   KindName(answer.header.kind()),
                                                   ", expected attached"));
  }
  return answer.header.not_attached().empty();
}

absl::Status GrpcIncomingStream::Receive(IncomingStage* stage, int from_stage) {
  TensorAssembler assembler(
      stage->context(), from_stage, stage->inbox(), [this](const Tag& tag) { return Admit(tag); },
      [this](const Tag& tag, int64_t offset) { return Claim(tag, offset); });
  while (!assembler.ended()) {
    HEADRACE_ASSIGN_OR_RETURN(const Frame frame, ReadFrame());
    HEADRACE_RETURN_IF_ERROR(assembler.Accept(frame));
  }
  grpc::ByteBuffer message;
  if (stream_->Read(&message)) {
    return absl::InvalidArgumentError("a frame after END, expected nothing");
  }
  return absl::OkStatus();
}

absl::Status GrpcIncomingStream::Admit(const Tag& tag) {
  const CreditClass credit_class = CreditClassOf(tag.kind);
  if (credit_class == CreditClass::kNone) return absl::OkStatus();
  const size_t i = static_cast<size_t>(credit_class);
  absl::MutexLock lock(&mu_);
  if (pools_[i] != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToText(tag), ": came in a frame, expected in shared memory"));
  }
  if (!IsPipelined(tag.kind)) return absl::OkStatus();
  if (held_[i] >= credits_) {
    return absl::ResourceExhaustedError(absl::StrCat(ToText(tag), ": sent without a credit, ",
                                                     held_[i], " tensors of ", credits_,
                                                     " credits have not been taken"));
  }
  ++held_[i];
  return absl::OkStatus();
}

absl::StatusOr<Slot> GrpcIncomingStream::Claim(const Tag& tag, int64_t offset) {
  const CreditClass credit_class = CreditClassOf(tag.kind);
  absl::MutexLock lock(&mu_);
  if (credit_class != CreditClass::kNone) {
    const size_t i = static_cast<size_t>(credit_class);
    if (auto granted = granted_[i].extract(offset)) {
      ++held_[i];
      return std::move(granted.mapped());
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(ToText(tag), ": in shared memory at ", offset,
                                                 ", where no slot was granted for it"));
}

void GrpcIncomingStream::Open(const IncomingStage& stage, int64_t from_stage, bool shares,
                              std::string not_shared) {
  const int64_t credits = stage.context().credits;
  absl::MutexLock lock(&mu_);
  credits_ = static_cast<int>(credits);
  not_shared_ = std::move(not_shared);
  to_return_ = {credits, credits, 0};  // the answer to HELLO grants the first credits
  if (!shares) return;
  region_ = stage.shared().region;
  for (const SharedInput& input : stage.shared().inputs) {
    if (input.from_stage != from_stage) continue;
    pools_[static_cast<size_t>(input.credit_class)] = input.pool;
    if (input.credit_class == CreditClass::kTie) to_return_[2] = input.pool->num_slots();
  }
}

void GrpcIncomingStream::WriteAcks() {
  if (!AwaitHello()) context_->TryCancel();
  Grant grant;
  std::string not_shared;
  {
    absl::MutexLock lock(&mu_);
    not_shared = not_shared_;
  }
  while (NextGrant(&grant) && WriteAck(grant, std::exchange(not_shared, ""))) {
  }
  absl::MutexLock lock(&mu_);
  acks_done_ = true;
}

bool GrpcIncomingStream::AwaitHello() {
  absl::MutexLock lock(&mu_);
  const auto greeted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return credits_ > 0 || stop_; };
  return mu_.AwaitWithTimeout(absl::Condition(&greeted), hello_timeout_);
}

bool GrpcIncomingStream::NextGrant(Grant* grant) {
  absl::MutexLock lock(&mu_);
  const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stop_ || to_return_ != PerClass{};
  };
  mu_.Await(absl::Condition(&due));
  *grant = TakeGrant();
  while (!stop_ && grant->empty()) {
    mu_.AwaitWithTimeout(absl::Condition(&stop_), kLookForSlot);
    *grant = TakeGrant();
  }
  return !stop_;
}

Grant GrpcIncomingStream::TakeGrant() {
  Grant grant;
  if (stop_) return grant;
  for (size_t i = 0; i < grant.credits.size(); ++i) {
    if (pools_[i] == nullptr) {
      grant.credits[i] = std::exchange(to_return_[i], 0);
      continue;
    }
    for (; to_return_[i] > 0; --to_return_[i]) {
      absl::StatusOr<Slot> slot = pools_[i]->Acquire(MemoryKind::kLink);
      if (!slot.ok()) break;
      const int64_t offset = region_->OffsetOf(slot->data());
      granted_[i].emplace(offset, *std::move(slot));
      grant.slots[i].push_back(offset);
      ++grant.credits[i];
    }
  }
  return grant;
}

bool GrpcIncomingStream::WriteAck(const Grant& grant, std::string not_shared) {
  v1::StreamTensorsResponse response;
  response.set_activation_credits(grant.credits[0]);
  response.set_gradient_credits(grant.credits[1]);
  response.mutable_activation_slots()->Add(grant.slots[0].begin(), grant.slots[0].end());
  response.mutable_gradient_slots()->Add(grant.slots[1].begin(), grant.slots[1].end());
  response.mutable_tie_slots()->Add(grant.slots[2].begin(), grant.slots[2].end());
  response.set_not_shared(std::move(not_shared));
  return Write(response);
}

bool GrpcIncomingStream::Write(const v1::StreamTensorsResponse& response) {
  const grpc::Slice slice(response.SerializeAsString());
  return stream_->Write(grpc::ByteBuffer(&slice, 1));
}

void GrpcIncomingStream::DropSlots() {
  absl::MutexLock lock(&mu_);
  pools_ = {};
  region_ = nullptr;
  to_return_ = {};
  for (auto& slots : granted_) slots.clear();
}

void GrpcIncomingStream::StopAcks() {
  absl::MutexLock lock(&mu_);
  stop_ = true;
  const auto done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return acks_done_; };
  // A peer that reads nothing can hold an ack back; it gets no status then.
  if (!mu_.AwaitWithTimeout(absl::Condition(&done), kLastAcks)) context_->TryCancel();
}

}  // namespace

GrpcStageService::GrpcStageService(StageDirectory* directory, absl::Duration hello_timeout) {
  const int method = v1::StreamTensorsRequest::descriptor()
                         ->file()
                         ->FindServiceByName("StageService")
                         ->FindMethodByName("StreamTensors")
                         ->index();
  // There is no public way to a synchronous raw handler; this is how the generated
  // WithStreamedUnaryMethod_ classes set theirs (gRPC 1.51).
  MarkMethodStreamed(
      method, new grpc::internal::TemplatedBidiStreamingHandler<RawStream, false>(
                  [directory, hello_timeout](grpc::ServerContext* context, RawStream* stream) {
                    return GrpcIncomingStream(directory, hello_timeout, context, stream).Run();
                  }));
}

}  // namespace headrace
