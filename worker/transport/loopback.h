// For tests: a receiving stage behind a real gRPC server in this process, and a sender that may say
// anything at all.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "common/grpc_status.h"
#include "worker/transport/crc32c.h"
#include "worker/transport/frame.h"
#include "worker/transport/grpc_service.h"
#include "worker/transport/link.h"

namespace headrace {

inline absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

// What a test's link goes over: how the receiver listens, and whether both are on one host.
enum class Over { kTcp, kUnixSocket, kSharedMemory };
inline std::string Listen(Over over) {
  if (over != Over::kUnixSocket) return "127.0.0.1:0";
  return absl::StrCat("unix:/tmp/headrace-link-test-", getpid());
}
inline std::string HostFor(Over over) { return over == Over::kSharedMemory ? "host-a" : ""; }
inline std::string NameOf(Over over) {
  constexpr const char* kNames[] = {"Tcp", "UnixSocket", "SharedMemory"};
  return kNames[static_cast<int>(over)];
}

// What the plan of the stages here says: tensors of `rows` × 256 float32, eight micro-batches, and
// decisions of three float64; with a host, stage 1 shares its input pools with stage 0.
struct TestPlan {
  int64_t rows = 1024;
  int credits = 2;
  int slots = 4;
  std::string host = "";

  std::vector<int64_t> shape() const { return {rows, 256}; }
  int64_t bytes() const { return rows * 256 * 4; }
};

inline LinkContext TestContext(int stage, const TestPlan& plan = {}) {
  return {
      .job_id = "j1", .generation = 3, .stage = stage, .credits = plan.credits, .host = plan.host};
}

inline Tag ActivationTag(int64_t step, int micro_batch, int from_stage = 0) {
  return {.kind = v1::MESSAGE_KIND_ACTIVATION,
          .from_stage = from_stage,
          .step = step,
          .micro_batch = micro_batch};
}

inline Tag DecisionTag(int64_t step, int from_stage = 0) {
  return {.kind = v1::MESSAGE_KIND_DECISION, .from_stage = from_stage, .step = step};
}

// An arena with a pool for activations and gradients. Where memory is shared, gradients and ties
// have pools of their own, and all of them lie in a region.
class TestMemory {
 public:
  explicit TestMemory(const TestPlan& plan, bool shared = false)
      : region_(shared ? *SharedRegion::Create(RegionBytes(plan)) : nullptr),
        arena_(*Arena::Create(plan.bytes() * plan.slots + (1 << 16))),
        pool_(*arena_->CarvePool("link", plan.bytes(), plan.slots, region_.get())),
        gradients_(pool_) {
    if (!shared) return;
    gradients_ = *arena_->CarvePool("gradients", plan.bytes(), plan.credits + 1, region_.get());
    ties_ = *arena_->CarvePool("ties", plan.bytes(), 1, region_.get());
  }
  Pool* pool() const { return pool_; }
  Pool* gradients() const { return gradients_; }
  Pool* ties() const { return ties_; }
  SharedInputs inputs() const {
    SharedInputs inputs{region_.get(), "this stage has none", {}};
    if (region_ == nullptr) return inputs;
    inputs.inputs = {{0, CreditClass::kActivation, pool_},
                     {0, CreditClass::kGradient, gradients_},
                     {0, CreditClass::kTie, ties_}};
    return inputs;
  }

 private:
  static int64_t RegionBytes(const TestPlan& plan) {
    return SharedRegion::PieceBytes(plan.bytes() * plan.slots) +
           SharedRegion::PieceBytes(plan.bytes() * (plan.credits + 1)) +
           SharedRegion::PieceBytes(plan.bytes());
  }

  std::unique_ptr<SharedRegion> region_;
  std::unique_ptr<Arena> arena_;
  Pool* pool_;
  Pool* gradients_;
  Pool* ties_ = nullptr;
};

// Stage 1 of job j1, generation 3, which expects tensors from stages 0 and 2.
class LoopbackStage {
 public:
  explicit LoopbackStage(const std::string& listen = "127.0.0.1:0", const TestPlan& plan = {},
                         absl::Duration hello_timeout = absl::Seconds(5))
      : plan_(plan),
        memory_(plan, !plan.host.empty()),
        inbox_([this](const Tag& tag) { return Expect(tag); }),
        service_(&directory_, hello_timeout) {
    directory_.Enter(TestContext(1, plan), &inbox_, memory_.inputs());
    grpc::ServerBuilder builder;
    int port = 0;
    const absl::Status listening = AddListener(&builder, listen, &port);
    if (!listening.ok()) abort();
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    address_ = port > 1 ? absl::StrCat("127.0.0.1:", port) : listen;
    port_ = port;
  }
  ~LoopbackStage() {
    Leave();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  }

  void Leave() { directory_.Leave("j1", 3); }
  Inbox& inbox() { return inbox_; }
  Pool* pool() { return memory_.pool(); }
  const TestMemory& memory() const { return memory_; }
  const std::string& address() const { return address_; }
  int port() const { return port_; }
  v1::Peer peer() const {
    v1::Peer peer;
    peer.set_stage(1);
    peer.set_worker("w1");
    peer.set_address(address_);
    peer.mutable_host()->set_id(plan_.host);
    return peer;
  }

 private:
  absl::StatusOr<Expectation> Expect(const Tag& tag) {
    if (tag.kind == v1::MESSAGE_KIND_TIED_WEIGHTS && memory_.ties() != nullptr) {
      return Expectation{.shape = plan_.shape(), .pool = memory_.ties()};
    }
    if (tag.kind == v1::MESSAGE_KIND_DECISION) {
      return Expectation{.type = ElementType::kFloat64, .shape = {3}};
    }
    if (tag.kind != v1::MESSAGE_KIND_ACTIVATION && tag.kind != v1::MESSAGE_KIND_GRADIENT) {
      return absl::InvalidArgumentError(ToText(tag) + ": not expected by stage 1");
    }
    if (tag.micro_batch >= 8) {
      return absl::InvalidArgumentError(ToText(tag) + ": expected micro-batch 0 to 7");
    }
    return Expectation{
        .shape = plan_.shape(),
        .pool = tag.kind == v1::MESSAGE_KIND_GRADIENT ? memory_.gradients() : memory_.pool()};
  }

  const TestPlan plan_;
  TestMemory memory_;
  Inbox inbox_;
  StageDirectory directory_;
  GrpcStageService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  int port_ = 0;
};

// A tensor of `plan` in a slot of `pool`, filled with a pattern of `seed`.
inline Outgoing MakeOutgoing(const Tag& tag, const TestPlan& plan, Pool* pool, int seed) {
  Outgoing outgoing;
  outgoing.tag = tag;
  outgoing.slot = *pool->Acquire(MemoryKind::kLink);
  outgoing.tensor.data = outgoing.slot.data();
  outgoing.tensor.shape = plan.shape();
  for (int64_t i = 0; i < outgoing.tensor.elements(); ++i) {
    outgoing.tensor.f32()[i] = static_cast<float>(seed * 1000 + i % 977);
  }
  return outgoing;
}

inline bool HoldsPattern(const Tensor& tensor, int seed) {
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    if (tensor.f32()[i] != static_cast<float>(seed * 1000 + i % 977)) return false;
  }
  return true;
}

inline Outgoing MakeDecision(const Tag& tag, double value) {
  Outgoing outgoing;
  outgoing.tag = tag;
  outgoing.inline_bytes.resize(3 * sizeof(double));
  outgoing.tensor = {
      .data = outgoing.inline_bytes.data(), .type = ElementType::kFloat64, .shape = {3}};
  for (int i = 0; i < 3; ++i) outgoing.tensor.f64()[i] = value;
  return outgoing;
}

// A stream of one's own bytes to a StageService.
class RawSender {
 public:
  explicit RawSender(const std::string& address)
      : channel_(MakeChannel(address, ChannelUse::kTensors)) {
    const grpc::internal::RpcMethod method("/headrace.v1.StageService/StreamTensors",
                                           grpc::internal::RpcMethod::BIDI_STREAMING, channel_);
    stream_.reset(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel_.get(), method, &context_));
  }

  bool Write(const grpc::ByteBuffer& message) { return stream_->Write(message); }
  bool Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    return Write(grpc::ByteBuffer(&slice, 1));
  }
  bool Write(v1::TensorHeader header, const std::string& payload) {
    return Write(EncodeFrame(header, grpc::Slice(payload)));
  }
  // The next ack. False: the stream is over.
  bool ReadAck(v1::StreamTensorsResponse* ack) {
    grpc::ByteBuffer message;
    grpc::Slice slice;
    return stream_->Read(&message) && message.DumpToSingleSlice(&slice).ok() &&
           ack->ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
  }
  void WritesDone() { stream_->WritesDone(); }
  // Reads to the end; the receiver's status.
  absl::Status Finish() {
    grpc::ByteBuffer message;
    while (stream_->Read(&message)) {
    }
    return FromGrpc(stream_->Finish());
  }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream_;
};

inline v1::TensorHeader TestHeader(v1::MessageKind kind) {
  v1::TensorHeader header;
  header.set_job_id("j1");
  header.set_generation(3);
  header.set_from_stage(0);
  header.set_kind(kind);
  return header;
}

// A frame's header with everything right for the whole of a small tensor of `plan`.
inline v1::TensorHeader WholeHeader(const TestPlan& plan, const std::string& payload,
                                    int64_t step = 1, int micro_batch = 0) {
  v1::TensorHeader header = TestHeader(v1::MESSAGE_KIND_ACTIVATION);
  header.set_step(step);
  header.set_micro_batch(micro_batch);
  header.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  for (int64_t dimension : plan.shape()) header.add_shape(dimension);
  header.set_total_bytes(plan.bytes());
  header.set_length(static_cast<int64_t>(payload.size()));
  header.set_crc32c(Crc32c(payload));
  return header;
}

}  // namespace headrace
