#include "worker/transport/grpc_service.h"

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>

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

size_t IndexOf(CreditClass credit_class) { return credit_class == CreditClass::kGradient ? 1 : 0; }

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
    absl::MutexLock lock(&mu_);
    --held_[IndexOf(credit_class)];
    ++to_return_[IndexOf(credit_class)];
  }

  void Cancel() override { context_->TryCancel(); }

 private:
  absl::Status Serve();
  absl::StatusOr<Frame> ReadFrame();
  absl::Status Receive(IncomingStage* stage, int from_stage);
  absl::Status Admit(const Tag& tag);
  void Greeted(int credits);
  void WriteAcks();
  bool AwaitHello();
  // Waits for credits to return. False: the stream is over.
  bool NextCredits(std::array<int64_t, 2>* credits);
  bool WriteAck(const std::array<int64_t, 2>& credits);
  void StopAcks();

  StageDirectory* const directory_;
  const absl::Duration hello_timeout_;
  grpc::ServerContext* const context_;
  RawStream* const stream_;

  absl::Mutex mu_;
  int credits_ ABSL_GUARDED_BY(mu_) = 0;                   // per class; 0 until HELLO is accepted
  std::array<int64_t, 2> held_ ABSL_GUARDED_BY(mu_) = {};  // tensors begun and not taken, by class
  std::array<int64_t, 2> to_return_ ABSL_GUARDED_BY(mu_) = {};
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
  Greeted(stage->context().credits);
  const int from_stage = static_cast<int>(header.from_stage());
  const absl::Status status =
      Annotate(Receive(stage.get(), from_stage), absl::StrCat("stream from stage ", from_stage));
  if (status.ok()) {
    stage->inbox()->End(from_stage);
  } else {
    stage->inbox()->Fail(from_stage, status);
  }
  stage->Part(from_stage);
  return status;
}

absl::Status GrpcIncomingStream::Receive(IncomingStage* stage, int from_stage) {
  TensorAssembler assembler(stage->context(), from_stage, stage->inbox(),
                            [this](const Tag& tag) { return Admit(tag); });
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
  absl::MutexLock lock(&mu_);
  int64_t& held = held_[IndexOf(credit_class)];
  if (held >= credits_) {
    return absl::ResourceExhaustedError(absl::StrCat(ToText(tag), ": sent without a credit, ", held,
                                                     " tensors of ", credits_,
                                                     " credits have not been taken"));
  }
  ++held;
  return absl::OkStatus();
}

void GrpcIncomingStream::Greeted(int credits) {
  absl::MutexLock lock(&mu_);
  credits_ = credits;
  to_return_ = {credits, credits};  // the answer to HELLO grants the first credits
}

void GrpcIncomingStream::WriteAcks() {
  if (!AwaitHello()) context_->TryCancel();
  std::array<int64_t, 2> credits;
  while (NextCredits(&credits) && WriteAck(credits)) {
  }
  absl::MutexLock lock(&mu_);
  acks_done_ = true;
}

bool GrpcIncomingStream::AwaitHello() {
  absl::MutexLock lock(&mu_);
  const auto greeted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return credits_ > 0 || stop_; };
  return mu_.AwaitWithTimeout(absl::Condition(&greeted), hello_timeout_);
}

bool GrpcIncomingStream::NextCredits(std::array<int64_t, 2>* credits) {
  absl::MutexLock lock(&mu_);
  const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stop_ || to_return_[0] > 0 || to_return_[1] > 0;
  };
  mu_.Await(absl::Condition(&due));
  *credits = std::exchange(to_return_, {});
  return !stop_;
}

bool GrpcIncomingStream::WriteAck(const std::array<int64_t, 2>& credits) {
  v1::StreamTensorsResponse response;
  response.set_activation_credits(credits[0]);
  response.set_gradient_credits(credits[1]);
  const grpc::Slice slice(response.SerializeAsString());
  return stream_->Write(grpc::ByteBuffer(&slice, 1));
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
