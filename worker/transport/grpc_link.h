// The sending side of one gRPC stream, from HELLO to END. Internal to ConnectLinks.
//
//   Connecting ──first credits──> Open ──Finish: queue empty, END written, status OK──> Finished
//        │                         │
//        └────── any error ────────┴──> Lost (cause)      Cancel ──> Cancelled, from any state
//
// While it connects, the receiver may offer its memory; if that can be attached, a credit is a slot
// there, the writer copies each tensor into one, and only its header goes down the stream. From one
// device to another that memory may be the device's, or the tensor goes by NCCL (device_sender.h).
// In files: grpc_link_open.cc, grpc_link_write.cc, grpc_link_device.cc; the states are in
// grpc_link.cc.
//
// Two threads: the writer drains the queue, one frame outstanding; the reader connects, then is
// always inside Read, takes credits from the acks, and settles the state when the stream ends.
// Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "headrace/v1/worker.pb.h"
#include "worker/backend/shared_region.h"
#include "worker/pipeline/outbox.h"
#include "worker/transport/device_sender.h"
#include "worker/transport/dial.h"
#include "worker/transport/link.h"
#include "worker/transport/send_buffer.h"

namespace headrace {

class GrpcLink {
 public:
  using OnLost = std::function<void(int stage, absl::Status cause)>;

  // Begins to connect, until `deadline` or `cancellation` (may be null; must outlive the link),
  // which has no say once the link is open. `on_lost` is called on the reader thread, only if the
  // link was open.
  GrpcLink(const LinkContext& context, const v1::Peer& receiver, absl::Time deadline,
           OnLost on_lost, Cancellation* cancellation);
  ~GrpcLink();  // Cancel, Join
  GrpcLink(const GrpcLink&) = delete;
  GrpcLink& operator=(const GrpcLink&) = delete;

  // Errors as ConnectLinks.
  absl::Status AwaitOpen(absl::Time deadline);
  // Once open.
  v1::LinkInfo Describe() const;
  // Errors as Outbox::Send.
  absl::Status Send(Outgoing outgoing, absl::Time deadline);
  // No Send after this; the writer ends the stream once the queue is empty.
  void BeginFinish();
  //   DEADLINE_EXCEEDED, UNAVAILABLE (lost), CANCELLED
  absl::Status AwaitFinished(absl::Time deadline);
  // Breaks the link if a frame has not left for too long: a ping cannot see that a peer is stopped
  // while our own bytes fill the socket. To be called now and then.
  void CancelIfStalled();
  // Drops the queue and ends the stream now.
  void Cancel();
  // After Cancel, or once finished: joins the threads and waits until gRPC has dropped every slot.
  void Join();

 private:
  using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
  enum class State { kConnecting, kOpen, kFinished, kLost, kCancelled };

  // A tensor to send, and the slot of the receiver's that is to take it, if its credit was one.
  struct Queued {
    Outgoing outgoing;
    std::optional<int64_t> slot;
  };

  void RunReader(absl::Time deadline, Cancellation* cancellation);
  absl::Status Connect(absl::Time deadline, const Cancellation* cancellation);
  absl::StatusOr<Socket> DialReceiver(absl::Time deadline, const Cancellation* cancellation);
  absl::Status Converse(std::optional<Cancellation::Call>* connecting);
  absl::Status Attach(const v1::SharedMemory& offer);
  void Answer(const std::string& not_attached);
  void RunWriter();
  // Waits for the next tensor. False: none will come.
  bool NextQueued(Queued* queued);
  v1::TensorHeader HeaderFor(v1::MessageKind kind) const;
  v1::TensorHeader HeaderOf(const Outgoing& outgoing) const;
  bool WriteTensor(Outgoing outgoing);
  bool WriteInPlace(Outgoing outgoing, int64_t slot);
  bool WriteInHost(Queued queued);

  // Takes up or drops what a receiver with a device offers or withdraws. False: it is no such
  // message.
  absl::StatusOr<bool> TakeDeviceOffer(const v1::StreamTensorsResponse& message);
  // Answers the receiver with what comes of it.
  void Try(std::function<absl::Status()> trial);
  // Waits for the end of a trial; `give_up`: makes it end.
  void AwaitTrial(bool give_up);
  LinkPatience ConnectPatience();
  // Sends a tensor of the device, and its header.
  bool WriteFromDevice(Queued queued);
  // The device or NCCL could not: ends the link. False, for the writer's sake.
  bool FailFromDevice(const Tag& tag, const absl::Status& status);
  bool direct() const { return device_ != nullptr && (device_->by_ipc() || device_->by_nccl()); }

  bool WriteFrame(const grpc::ByteBuffer& frame, grpc::WriteOptions options);
  void WriteEnd();
  void AwaitBuffers();
  absl::Status TakeAck(const v1::StreamTensorsResponse& ack);
  absl::Status TakeSlots(CreditClass credit_class, int64_t credits,
                         const google::protobuf::RepeatedField<int64_t>& slots)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Open(const v1::StreamTensorsResponse& ack) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A tensor of this class waits for a credit.
  bool IsPaced(CreditClass credit_class) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Settle(const grpc::Status& status, const absl::Status& protocol_error);
  absl::Status CauseOf(const grpc::Status& status, const absl::Status& protocol_error) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Over() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return state_ != State::kConnecting && state_ != State::kOpen;
  }

  const LinkContext context_;
  const v1::Peer receiver_;
  const int to_stage_;
  const std::string name_;  // "link to stage 1 (worker w1, 10.0.0.2:7071)"
  const OnLost on_lost_;
  const std::shared_ptr<BuffersInFlight> in_flight_;
  std::unique_ptr<grpc::ClientContext> client_context_;  // until Join
  // Made by the reader before the link is open. gRPC's way to hold a channel is shared.
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Stream> stream_;
  std::string address_;                   // where it was reached
  std::string why_not_shared_;            // empty: it is
  std::unique_ptr<SharedRegion> region_;  // the receiver's, if attached

  // Of a stage on a device. The reader's and its trial's until the link is open, then the writer's,
  // then Join's.
  std::unique_ptr<DeviceSender> device_;
  std::string why_not_direct_;
  bool memory_offered_ = false, nccl_offered_ = false;
  const absl::Time connect_deadline_;
  const Cancellation* const connect_cancellation_;  // may be null; not once the link is open
  std::thread trial_;                               // the reader's
  std::atomic<bool> trial_given_up_ = false;

  absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kConnecting;
  absl::Status cause_ ABSL_GUARDED_BY(mu_);  // of kLost
  Socket socket_ ABSL_GUARDED_BY(mu_);       // the connection's, to cut it
  std::array<int64_t, kNumCreditClasses> credits_ ABSL_GUARDED_BY(mu_) = {};
  // Of classes whose tensors go to shared memory: where to, one for each credit.
  std::array<std::deque<int64_t>, kNumCreditClasses> slots_ ABSL_GUARDED_BY(mu_);
  std::array<bool, kNumCreditClasses> in_place_ ABSL_GUARDED_BY(mu_) = {};
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  bool end_written_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time write_began_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // of the frame under way
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  bool bad_slot_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status device_error_ ABSL_GUARDED_BY(mu_);

  std::thread reader_;
  std::thread writer_;
};

}  // namespace headrace
