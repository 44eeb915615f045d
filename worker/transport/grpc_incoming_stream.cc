#include "worker/transport/grpc_incoming_stream.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/status.h"
#include "worker/transport/link_choice.h"
#include "worker/transport/tensor_assembler.h"

namespace headrace {

grpc::Status GrpcIncomingStream::Run() {
  std::thread acks([this] { WriteAcks(); });
  const absl::Status status = Serve();
  StopAcks();
  acks.join();
  return ToGrpc(status);
}

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
  device_.reset();  // before the stage's own
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

}  // namespace headrace
