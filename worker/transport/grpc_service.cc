#include "worker/transport/grpc_service.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/status.h"
#include "worker/transport/device_receiver.h"
#include "worker/transport/frame.h"
#include "worker/transport/incoming_stage.h"
#include "worker/transport/link_choice.h"
#include "worker/transport/tensor_assembler.h"

namespace headrace {
namespace {

using RawStream = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

// How long the last acks may take once the stream has ended.
constexpr absl::Duration kLastAcks = absl::Milliseconds(500);

// Between two looks for a free slot that is due: whoever took the last tensor still uses it.
constexpr absl::Duration kLookForSlot = absl::Milliseconds(1);
constexpr absl::Duration kLookAtDevice = absl::Microseconds(50);

// How long the two ends may take to agree on a way between them: NCCL's first connection takes
// seconds.
constexpr absl::Duration kAgree = absl::Seconds(20);

using PerClass = std::array<int64_t, kNumCreditClasses>;

// What goes back to the sender in one ack.
struct Grant {
  PerClass credits = {};
  std::array<std::vector<int64_t>, kNumCreditClasses> slots;  // in shared memory, of those credits

  bool empty() const { return credits == PerClass{}; }
};

// A slot that nobody holds any more, though the device may still read it, until `mark`.
struct FreedSlot {
  Slot slot;
  int64_t mark;
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
  // Agrees with a sender on a device on a way that passes by the host, or says why there is none.
  absl::Status AgreeOnDevice(const IncomingStage& stage, const v1::TensorHeader& hello,
                             std::string* why_not);
  // Whether the sender has attached the region; `why_not` says what was tried before.
  absl::StatusOr<bool> Offer(const IncomingStage& stage, int64_t from_stage,
                             const std::string& why_not);
  absl::StatusOr<std::string> ReadAttached(int64_t from_stage);
  absl::Status Receive(IncomingStage* stage, int from_stage);
  absl::Status Admit(const Tag& tag);
  absl::StatusOr<Slot> Claim(const Tag& tag, int64_t offset);
  absl::Status Bring(const IncomingStage& stage, Received* received, bool by_nccl);
  // Until `deadline`, or the end of the stream.
  LinkPatience Patience(absl::Duration timeout) const;
  // `base` is where the slots of `inputs` count from; null: frames, or NCCL.
  void Open(const IncomingStage& stage, int64_t from_stage, const char* base,
            const std::vector<SharedInput>& inputs, std::string not_shared);
  void WriteAcks();
  bool AwaitHello();
  // Waits for credits to return. False: the stream is over.
  bool NextGrant(Grant* grant);
  Grant TakeGrant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeSlots(size_t i, Grant* grant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WriteAck(const Grant& grant, std::string not_shared);
  bool Write(const v1::StreamTensorsResponse& response);
  void DropSlots();
  void StopAcks();

  StageDirectory* const directory_;
  const absl::Duration hello_timeout_;
  grpc::ServerContext* const context_;
  RawStream* const stream_;

  // Of a stage on a device. The stream thread's; the thread that writes acks uses it where base_ is
  // not null.
  std::unique_ptr<DeviceReceiver> device_;
  bool numbers_only_ = false;  // nothing comes to the device; known when the first credits go

  absl::Mutex mu_;
  bool agreeing_ ABSL_GUARDED_BY(mu_) = false;   // two devices are trying each other
  int credits_ ABSL_GUARDED_BY(mu_) = 0;         // per class; 0 until the sender was greeted
  std::string not_shared_ ABSL_GUARDED_BY(mu_);  // for the first ack
  PerClass held_ ABSL_GUARDED_BY(mu_) = {};      // tensors begun and not taken
  PerClass to_return_ ABSL_GUARDED_BY(mu_) = {};
  // Of classes whose tensors come in shared memory: their pools, and the slots that are the
  // sender's to fill, by offset in the memory; and those that will be, once the device is done with
  // them.
  const char* base_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool on_device_ ABSL_GUARDED_BY(mu_) = false;
  std::array<Pool*, kNumCreditClasses> pools_ ABSL_GUARDED_BY(mu_) = {};
  std::array<std::deque<FreedSlot>, kNumCreditClasses> freed_ ABSL_GUARDED_BY(mu_);
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
  device_.reset();  // before the stage's own
  if (status.ok()) {
    stage->inbox()->End(from_stage);
  } else {
    stage->inbox()->Fail(from_stage, status);
  }
  stage->Part(from_stage);
  return status;
}

absl::Status GrpcIncomingStream::Greet(const IncomingStage& stage, const v1::TensorHeader& hello) {
  const SharedInputs& shared = stage.shared();
  std::string why_not;
  HEADRACE_RETURN_IF_ERROR(AgreeOnDevice(stage, hello, &why_not));
  if (device_ != nullptr && device_->by_ipc()) {
    Open(stage, hello.from_stage(), stage.context().device->memory(), shared.device_inputs, "");
    return absl::OkStatus();
  }
  if (device_ != nullptr && device_->by_nccl()) {
    Open(stage, hello.from_stage(), nullptr, {}, "");
    return absl::OkStatus();
  }
  std::string not_shared;
  if (!AllowsSharedMemory(stage.context().transport)) {
    not_shared = why_not;
  } else if (hello.host() != stage.context().host) {
    not_shared = "the workers are on different hosts";
  } else if (shared.region == nullptr) {
    not_shared = shared.why_none;
  } else if (!hello.host().empty()) {
    HEADRACE_ASSIGN_OR_RETURN(const bool attached, Offer(stage, hello.from_stage(), why_not));
    if (attached) {
      Open(stage, hello.from_stage(), shared.region->base(), shared.inputs, "");
      return absl::OkStatus();
    }
  }
  if (!not_shared.empty() && !why_not.empty() && not_shared != why_not) {
    not_shared = absl::StrCat(why_not, "; shm: ", not_shared);
  }
  const bool asked = !hello.host().empty() || !hello.device().empty() || !why_not.empty();
  Open(stage, hello.from_stage(), nullptr, {}, asked ? not_shared : "");
  return absl::OkStatus();
}

absl::Status GrpcIncomingStream::AgreeOnDevice(const IncomingStage& stage,
                                               const v1::TensorHeader& hello,
                                               std::string* why_not) {
  LinkDevice* const device = stage.context().device;
  if (device != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(device_, DeviceReceiver::Open(device));
  }
  const DevicePaths paths =
      ChooseDevicePaths(stage.context().transport, {hello.host(), hello.device()},
                        {stage.context().host, device != nullptr ? device->uuid() : ""});
  *why_not = paths.why_not;
  if (!paths.cuda_ipc && !paths.nccl) return absl::OkStatus();
  const std::vector<SharedInput>& inputs = stage.shared().device_inputs;
  const auto input = std::find_if(inputs.begin(), inputs.end(), [&hello](const SharedInput& in) {
    return in.from_stage == hello.from_stage();
  });
  if (input == inputs.end()) {
    numbers_only_ = true;
    *why_not = "no tensors go this way";
    return absl::OkStatus();
  }
  HEADRACE_ASSIGN_OR_RETURN(const Slot place, input->pool->Acquire(MemoryKind::kLink));
  {
    absl::MutexLock lock(&mu_);
    agreeing_ = true;
  }
  const Greeting greeting = {
      .write = [this](const v1::StreamTensorsResponse& offer) { return Write(offer); },
      .read = [this, &hello] { return ReadAttached(hello.from_stage()); },
      .patience = Patience(kAgree)};
  return device_->Agree(paths, place, greeting, why_not);
}

absl::StatusOr<bool> GrpcIncomingStream::Offer(const IncomingStage& stage, int64_t from_stage,
                                               const std::string& why_not) {
  const SharedRegion::Name& name = stage.shared().region->name();
  v1::StreamTensorsResponse offer;
  offer.mutable_shared_memory()->set_process(name.process);
  offer.mutable_shared_memory()->set_file(name.file);
  offer.mutable_shared_memory()->set_bytes(name.bytes);
  offer.mutable_shared_memory()->set_nonce(name.nonce);
  offer.set_not_shared(why_not);
  // The thread that writes acks waits until the sender was greeted.
  if (!Write(offer)) return absl::UnavailableError("the stream broke before its END");
  HEADRACE_ASSIGN_OR_RETURN(const std::string not_attached, ReadAttached(from_stage));
  return not_attached.empty();
}

absl::StatusOr<std::string> GrpcIncomingStream::ReadAttached(int64_t from_stage) {
  HEADRACE_ASSIGN_OR_RETURN(const Frame answer, ReadFrame());
  if (answer.header.kind() != v1::MESSAGE_KIND_ATTACHED ||
      answer.header.from_stage() != from_stage) {
    return absl::InvalidArgumentError(absl::StrCat("answer to an offer of memory of kind ",
                                                   KindName(answer.header.kind()),
                                                   ", expected attached"));
  }
  return answer.header.not_attached();
}

LinkPatience GrpcIncomingStream::Patience(absl::Duration timeout) const {
  return {.deadline = absl::Now() + timeout, .over = [this] {
            return context_->IsCancelled()
                       ? absl::UnavailableError("the stream broke before its END")
                       : absl::OkStatus();
          }};
}

absl::Status GrpcIncomingStream::Bring(const IncomingStage& stage, Received* received,
                                       bool by_nccl) {
  const LinkPatience patience = Patience(stage.context().copy_timeout);
  return by_nccl ? device_->ReceiveByNccl(received, patience) : device_->Land(received, patience);
}

absl::Status GrpcIncomingStream::Receive(IncomingStage* stage, int from_stage) {
  TensorAssembler::Bring bring;
  if (device_ != nullptr) {
    bring = [this, stage](Received* received, bool by_nccl) {
      return Bring(*stage, received, by_nccl);
    };
  }
  TensorAssembler assembler(
      stage->context(), from_stage, stage->inbox(), [this](const Tag& tag) { return Admit(tag); },
      [this](const Tag& tag, int64_t offset) { return Claim(tag, offset); }, std::move(bring));
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

void GrpcIncomingStream::Open(const IncomingStage& stage, int64_t from_stage, const char* base,
                              const std::vector<SharedInput>& inputs, std::string not_shared) {
  const int64_t credits = stage.context().credits;
  absl::MutexLock lock(&mu_);
  credits_ = static_cast<int>(credits);
  not_shared_ = std::move(not_shared);
  to_return_ = {credits, credits, 0};  // the answer to HELLO grants the first credits
  base_ = base;
  on_device_ = device_ != nullptr && device_->by_ipc();
  for (const SharedInput& input : inputs) {
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
  if (mu_.AwaitWithTimeout(absl::Condition(&greeted), hello_timeout_)) return true;
  return agreeing_ && mu_.AwaitWithTimeout(absl::Condition(&greeted), kAgree);
}

bool GrpcIncomingStream::NextGrant(Grant* grant) {
  absl::MutexLock lock(&mu_);
  const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stop_ || to_return_ != PerClass{};
  };
  mu_.Await(absl::Condition(&due));
  *grant = TakeGrant();
  while (!stop_ && grant->empty()) {
    mu_.AwaitWithTimeout(absl::Condition(&stop_), on_device_ ? kLookAtDevice : kLookForSlot);
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
    } else {
      TakeSlots(i, &grant);
    }
  }
  return grant;
}

void GrpcIncomingStream::TakeSlots(size_t i, Grant* grant) {
  std::deque<FreedSlot>& freed = freed_[i];
  while (to_return_[i] > static_cast<int64_t>(freed.size())) {
    absl::StatusOr<Slot> slot = pools_[i]->Acquire(MemoryKind::kLink);
    if (!slot.ok()) break;
    freed.push_back({*std::move(slot), on_device_ ? device_->MarkSlot() : 0});
  }
  while (!freed.empty() && (!on_device_ || device_->SlotIsFree(freed.front().mark))) {
    const int64_t offset = static_cast<const char*>(freed.front().slot.data()) - base_;
    granted_[i].emplace(offset, std::move(freed.front().slot));
    freed.pop_front();
    grant->slots[i].push_back(offset);
    ++grant->credits[i];
    --to_return_[i];
  }
}

bool GrpcIncomingStream::WriteAck(const Grant& grant, std::string not_shared) {
  v1::StreamTensorsResponse response;
  response.set_activation_credits(grant.credits[0]);
  response.set_gradient_credits(grant.credits[1]);
  response.mutable_activation_slots()->Add(grant.slots[0].begin(), grant.slots[0].end());
  response.mutable_gradient_slots()->Add(grant.slots[1].begin(), grant.slots[1].end());
  response.mutable_tie_slots()->Add(grant.slots[2].begin(), grant.slots[2].end());
  response.set_not_shared(std::move(not_shared));
  response.set_numbers_only(numbers_only_);
  return Write(response);
}

bool GrpcIncomingStream::Write(const v1::StreamTensorsResponse& response) {
  const grpc::Slice slice(response.SerializeAsString());
  return stream_->Write(grpc::ByteBuffer(&slice, 1));
}

void GrpcIncomingStream::DropSlots() {
  absl::MutexLock lock(&mu_);
  pools_ = {};
  base_ = nullptr;
  on_device_ = false;
  to_return_ = {};
  for (auto& slots : freed_) slots.clear();
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
