// Sends this stage's tensors to others, on threads of its own, so compute never waits for a send it
// does not depend on. Holds one link per receiving stage. Thread-safe; the executor Sends.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/backend/arena.h"
#include "worker/pipeline/span_recorder.h"
#include "worker/pipeline/tag.h"

namespace headrace {

// A tensor and what keeps its memory: a pool slot that is free again once the last byte has left.
struct Outgoing {
  Tag tag;  // from_stage is the sender's own
  Tensor tensor;
  Slot slot;                       // pipelined kinds
  std::vector<char> inline_bytes;  // small kinds; tensor.data points here
  // Neither: ties, which leave from where they lie; the arena keeps it.
  Departure departure;
  // Of a tensor in a device's memory: a slot of pinned host memory, for a link that does not do
  // without; and the mark (LinkDevice) after which the tensor is complete, −1: it is.
  Slot staged;
  int64_t mark = -1;
};

class Outbox {
 public:
  virtual ~Outbox() = default;

  // Queues `outgoing` for `to_stage`. Pipelined kinds (activation, gradient, evaluation activation)
  // wait for a credit until `deadline`; the others go at once.
  //   DEADLINE_EXCEEDED  no credit came: names receiver, tag, how long it waited
  //   UNAVAILABLE        the link is lost (the cause is in the message); also for any earlier
  //                      send that failed
  //   CANCELLED          Close was called
  virtual absl::Status Send(int to_stage, Outgoing outgoing, absl::Time deadline) = 0;

  // Waits until everything queued has left, then ends each stream in order (an END frame).
  virtual absl::Status Finish(absl::Time deadline) = 0;
  // Drops what is queued, cancels the streams, joins the threads. Idempotent.
  virtual void Close() = 0;
};

}  // namespace headrace
