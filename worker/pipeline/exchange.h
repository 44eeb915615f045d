// Takes tensors from other stages and sends them, for the code that computes: fills in tags, waits
// with a deadline, measures the wait, keeps the flight record and the trace, and says in one
// sentence who was waited for when it goes wrong:
//
//   worker w1, stage 1, step 12, micro-batch 3: waited 60.0 s for the activation from stage 0
//   (worker w0)
//
// Owned by the compute thread.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/backend/compute_device.h"
#include "worker/pipeline/flight_recorder.h"
#include "worker/pipeline/inbox.h"
#include "worker/pipeline/link_pools.h"
#include "worker/pipeline/outbox.h"
#include "worker/pipeline/span_recorder.h"
#include "worker/pipeline/stage_job.h"

namespace headrace {

// What a stage is at. Tags and sentences are made from it.
struct Position {
  int64_t step = 0;
  int micro_batch = -1;  // −1: between micro-batches
};

class Exchange {
 public:
  // All must outlive the exchange. `device` is whose memory the pools are; null: host memory.
  Exchange(const StageJob* job, LinkPools pools, Inbox* inbox, Outbox* outbox,
           FlightRecorder* recorder, SpanRecorder* spans, ComputeDevice* device = nullptr);

  void MoveTo(Position position) { position_ = position; }
  const Position& position() const { return position_; }

  // The tensor of this kind, step and micro-batch from `from_stage`.
  //   DEADLINE_EXCEEDED, UNAVAILABLE, …  with the sentence; blamed_stage() is set
  //   CANCELLED                          the stage was told to stop
  //   INTERNAL                           it cannot be brought to the device
  absl::StatusOr<Received> Take(v1::MessageKind kind, int from_stage);
  absl::StatusOr<std::vector<double>> TakeNumbers(v1::MessageKind kind, int from_stage);
  absl::StatusOr<int32_t> TakeToken(int from_stage);

  // Memory for an activation or a gradient to fill and Send. Waits for a slot to come back, if it
  // must. Errors as Send.
  absl::StatusOr<Outgoing> Prepare(v1::MessageKind kind, std::vector<int64_t> shape);
  // Waits for a credit, not for the tensor to leave, nor to be made on a device with links. Errors
  // as Take.
  absl::Status Send(int to_stage, Outgoing outgoing);
  absl::Status SendNumbers(v1::MessageKind kind, int to_stage,
                           std::initializer_list<double> numbers);
  absl::Status SendToken(int to_stage, int32_t token);

  // What the device says, as a failure at this position.
  absl::Status CheckDevice() const;

  // "worker w1, stage 1, step 12, micro-batch 3: "
  absl::Status Failure(absl::StatusCode code, const std::string& what) const;
  void Record(const std::string& what);
  // For the trace: what was done at this position.
  void AddSpan(v1::SpanKind kind, int64_t begin_ns, int64_t end_ns);

  // The stage that made the last Take or Send fail; −1: none.
  int blamed_stage() const { return blamed_stage_; }

  // Time waited and bytes moved since the object was made.
  absl::Duration waited_to_receive() const { return waited_to_receive_; }
  absl::Duration waited_to_send() const { return waited_to_send_; }
  int64_t received_bytes() const { return received_bytes_; }
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  Tag MakeTag(v1::MessageKind kind, int from_stage, int chunk) const;
  std::string PeerName(int stage) const;  // "stage 0 (worker w0)"
  absl::Status Blame(int stage, const absl::Status& cause, const std::string& doing,
                     const std::string& waited_for, absl::Duration waited);
  // Brings what arrived in host memory to its slot.
  absl::Status Land(Received* received);
  // Brings a device's tensor to host memory, in which it leaves, or gives its link what it needs
  // to.
  absl::Status Stage(Outgoing* outgoing);
  // Waits for a slot to come back, if it must.
  absl::StatusOr<Slot> AwaitSlot(Pool* pool, v1::MessageKind kind);
  // A span at this position of a tensor to or from `peer`, complete but for its end.
  Span TensorSpan(v1::SpanKind span, v1::MessageKind kind, int peer, int64_t begin_ns) const;
  // From `begin_ns` until now.
  void AddWait(v1::SpanKind span, v1::MessageKind kind, int peer, int64_t begin_ns);
  void AddReceive(const Received& received, int from_stage);

  const StageJob& job_;
  const LinkPools pools_;
  Inbox* const inbox_;
  Outbox* const outbox_;
  FlightRecorder* const recorder_;
  SpanRecorder* const spans_;
  ComputeDevice* const device_;

  Position position_;
  int blamed_stage_ = -1;
  absl::Duration waited_to_receive_, waited_to_send_;
  int64_t received_bytes_ = 0, sent_bytes_ = 0;
};

// "activation", "gradient", "tied weight", …
const char* NounOf(v1::MessageKind kind);

}  // namespace headrace
