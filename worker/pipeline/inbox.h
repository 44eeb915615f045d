// Holds what arrived for this stage until the executor asks for it. Keyed by tag, so the order of
// arrival cannot deadlock; bounded, because a sender holds a credit per tensor in flight.
// Thread-safe. Link threads Put, only the executor Takes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/arena.h"
#include "worker/pipeline/tag.h"

namespace headrace {

// A received tensor: in a pool slot (activations, gradients, ties), or small and inline (norms,
// decisions, tokens). Where slots are a device's memory it arrives in host memory first, `staged`,
// from which Exchange::Take brings it to its slot.
struct Received {
  Tag tag;
  Tensor tensor;  // points into staged, else into slot, or into inline_bytes
  Slot slot;
  Slot staged;
  std::vector<char> inline_bytes;
  absl::Time available_at = absl::InfinitePast();  // later only on a simulated wire
  int64_t began_ns = 0;                            // on the steady clock: its first bytes were here
  int64_t arrived_ns = 0;                          // … and all of them
};

// What the plan says may arrive: a frame is checked against this before a byte is copied.
struct Expectation {
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;
  Pool* pool = nullptr;     // null: small, inline
  Pool* staging = nullptr;  // host memory in which tensors for `pool` arrive; null: in the pool
};

class Inbox {
 public:
  // Tells what a tag's tensor must look like, or why the tag is not expected at all (wrong stage,
  // kind or micro-batch). Pure; called on link threads.
  using Expect = std::function<absl::StatusOr<Expectation>(const Tag& tag)>;

  // Small tensors (those without a pool) that may wait at once, over all senders. They need no
  // credit, but a stage is never more than a step ahead of another, so a few suffice.
  static constexpr int kMaxInlineWaiting = 64;

  // When a tensor of this tag that arrives now can be taken: a simulated wire may still carry it.
  // Called on link threads; null: at once.
  using Pace = std::function<absl::Time(const Tag& tag)>;

  explicit Inbox(Expect expect, Pace pace = nullptr);

  // Memory for an incoming tensor. Never blocks.
  //   INVALID_ARGUMENT    not expected, or of another shape, size or type (says which and what was
  //                       expected)
  //   ALREADY_EXISTS      as Put, known before a byte is copied
  //   RESOURCE_EXHAUSTED  the sender ignored its credit
  //   what Fail said, CANCELLED  as Take
  absl::StatusOr<Received> Prepare(const Tag& tag, ElementType type,
                                   const std::vector<int64_t>& shape);
  // The same for a tensor that lies in `slot` already. Also:
  //   INVALID_ARGUMENT    tensors of this tag do not arrive in the slot's pool
  absl::StatusOr<Received> Prepare(const Tag& tag, ElementType type,
                                   const std::vector<int64_t>& shape, Slot slot);
  // Takes ownership. Never blocks.
  //   ALREADY_EXISTS  the tag is waiting already, or (pipelined kinds) was taken in this step or
  //                   belongs to a step that is over
  //   what Fail said, CANCELLED  as Take
  absl::Status Put(Received received);

  // Waits for `tag`. On return the sender's credit is given back (through `on_taken`).
  //   DEADLINE_EXCEEDED  names the tag and how long it waited
  //   FAILED_PRECONDITION  the sender ended its stream, so the tag cannot come any more
  //   what Fail said     the peer it waits for is lost
  //   CANCELLED          Close was called
  absl::StatusOr<Received> Take(const Tag& tag, absl::Time deadline);

  // The link from `stage` is broken: Takes of tensors from it fail with `cause`, now and later;
  // what waits from it is dropped. The first cause stays. Nothing is lost where the stage's stream
  // has ended in order: it may be done, and gone, before this one.
  void Fail(int stage, absl::Status cause);
  // The link from `stage` has ended in order: what waits from it can still be taken, nothing else
  // will come.
  void End(int stage);
  // Drops what waits and fails every Take, now and later. Idempotent.
  void Close();
  // Called after each Take, outside the lock, with the taken tensor's tag. Replaces the one before;
  // null: none.
  void OnTaken(std::function<void(const Tag&)> on_taken);

 private:
  // What was taken of one (stage, kind), to refuse a second copy: tags of the latest step only.
  struct Taken {
    int64_t step = 0;
    std::set<Tag> tags;
  };

  // Why nothing of this tag can be taken any more; OK: it may.
  absl::Status CheckOpen(const Tag& tag) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // What may arrive with this tag, type and shape. Errors as Prepare.
  absl::StatusOr<Expectation> CheckExpected(const Tag& tag, ElementType type,
                                            const std::vector<int64_t>& shape);
  absl::Status CheckWanted(const Tag& tag) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Remember(const Tag& tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Expect expect_;
  const Pace pace_;
  absl::Mutex mu_;
  std::map<Tag, Received> waiting_ ABSL_GUARDED_BY(mu_);
  int inline_waiting_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::pair<int, v1::MessageKind>, Taken> taken_ ABSL_GUARDED_BY(mu_);
  std::map<int, absl::Status> failed_ ABSL_GUARDED_BY(mu_);
  std::set<int> ended_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void(const Tag&)> on_taken_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
