// The receiving side of one gRPC stream, from HELLO to END. Internal to GrpcStageService. How it
// greets its sender and takes tensors is in grpc_incoming_stream.cc, how credits go back in
// grpc_incoming_acks.cc.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/transport/device_receiver.h"
#include "worker/transport/frame.h"
#include "worker/transport/incoming_stage.h"

namespace headrace {

// Both of StreamTensors' ways as bytes: the generated messages would copy every payload twice.
using RawByteStream = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

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

// Two threads: the RPC's own, always inside Read; and one that returns credits.
class GrpcIncomingStream final : public IncomingStream {
 public:
  GrpcIncomingStream(StageDirectory* directory, absl::Duration hello_timeout,
                     grpc::ServerContext* context, RawByteStream* stream)
      : directory_(directory), hello_timeout_(hello_timeout), context_(context), stream_(stream) {}

  // Until END or the end of the stream.
  grpc::Status Run();

  void ReturnCredit(CreditClass credit_class) override;

  void Cancel() override { context_->TryCancel(); }

 private:
  // How long the two ends may take to agree on a way between them: NCCL's first connection takes
  // seconds.
  static constexpr absl::Duration kAgree = absl::Seconds(20);

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
  RawByteStream* const stream_;

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
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // nothing comes any more
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool acks_done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace headrace
