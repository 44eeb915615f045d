// For tests: stages on fake devices, the receiving one behind a real gRPC server in this process.
#pragma once

#include <memory>
#include <string>

#include "worker/transport/fake_link_device.h"
#include "worker/transport/loopback.h"

namespace headrace {

// A stage's memory on a device, and the pinned memory beside it.
class DeviceEnd {
 public:
  DeviceEnd(const std::string& uuid, const TestPlan& plan)
      : plan_(plan),
        region_(plan.host.empty() ? nullptr
                                  : *SharedRegion::Create(
                                        2 * SharedRegion::PieceBytes(plan.bytes() * plan.slots))),
        device_(uuid, 3 * plan.slots * plan.bytes() + (1 << 16)),
        arena_(Arena::Over(device_.memory(), device_.memory_bytes())),
        staging_(*Arena::Create(3 * plan.slots * plan.bytes() + (1 << 16))) {
    activations_ = *arena_->CarvePool("activations", plan.bytes(), plan.slots);
    gradients_ = *arena_->CarvePool("gradients", plan.bytes(), plan.credits + 1);
    staged_ = *staging_->CarvePool("staged", plan.bytes(), plan.slots, region_.get());
    staged_gradients_ =
        *staging_->CarvePool("staged gradients", plan.bytes(), plan.credits + 1, region_.get());
    staged_out_ = *staging_->CarvePool("staged out", plan.bytes(), plan.credits + 1);
  }

  FakeLinkDevice& device() { return device_; }
  Pool* pool() const { return activations_; }
  Pool* staged() const { return staged_; }
  Pool* staged_out() const { return staged_out_; }
  Expectation Expect(v1::MessageKind kind) const {
    const bool gradient = kind == v1::MESSAGE_KIND_GRADIENT;
    return {.shape = plan_.shape(),
            .pool = gradient ? gradients_ : activations_,
            .staging = gradient ? staged_gradients_ : staged_};
  }
  SharedInputs inputs() const {
    SharedInputs inputs{region_.get(), "this stage has none", {}, {}};
    inputs.device_inputs = {{0, CreditClass::kActivation, activations_},
                            {0, CreditClass::kGradient, gradients_}};
    if (region_ == nullptr) return inputs;
    inputs.inputs = {{0, CreditClass::kActivation, staged_},
                     {0, CreditClass::kGradient, staged_gradients_}};
    return inputs;
  }

 private:
  const TestPlan plan_;
  const std::unique_ptr<SharedRegion> region_;
  FakeLinkDevice device_;
  const std::unique_ptr<Arena> arena_, staging_;
  Pool *activations_, *gradients_, *staged_, *staged_gradients_, *staged_out_;
};

// Stage 1 of job j1, generation 3, on `end`'s device, which expects tensors from stage 0.
class DeviceStage {
 public:
  DeviceStage(DeviceEnd* end, const TestPlan& plan, v1::Transport transport = v1::TRANSPORT_AUTO,
              const std::string& listen = "127.0.0.1:0", int64_t generation = 3)
      : end_(end),
        plan_(plan),
        generation_(generation),
        inbox_([this](const Tag& tag) -> absl::StatusOr<Expectation> {
          if (tag.kind != v1::MESSAGE_KIND_DECISION) return end_->Expect(tag.kind);
          return Expectation{.type = ElementType::kFloat64, .shape = {3}};
        }),
        service_(&directory_) {
    LinkContext context = TestContext(1, plan);
    context.generation = generation;
    context.transport = transport;
    context.device = &end->device();
    directory_.Enter(context, &inbox_, end->inputs());
    grpc::ServerBuilder builder;
    int port = 0;
    if (!AddListener(&builder, listen, &port).ok()) abort();
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~DeviceStage() {
    Leave();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  }

  void Leave() { directory_.Leave("j1", generation_); }
  Inbox& inbox() { return inbox_; }
  const std::string& address() const { return address_; }
  v1::Peer peer() const {
    v1::Peer peer;
    peer.set_stage(1);
    peer.set_worker("w1");
    peer.set_address(address_);
    peer.mutable_host()->set_id(plan_.host);
    return peer;
  }

 private:
  DeviceEnd* const end_;
  const TestPlan plan_;
  const int64_t generation_;
  Inbox inbox_;
  StageDirectory directory_;
  GrpcStageService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// As MakeOutgoing, of a tensor on `end`'s device that compute has been told to make.
inline Outgoing MakeDeviceOutgoing(const Tag& tag, const TestPlan& plan, DeviceEnd* end, int seed) {
  Outgoing outgoing = MakeOutgoing(tag, plan, end->pool(), seed);
  outgoing.staged = *end->staged_out()->Acquire(MemoryKind::kLink);
  DeviceFailure failure;
  outgoing.mark = end->device().Mark(&failure);
  return outgoing;
}

}  // namespace headrace
