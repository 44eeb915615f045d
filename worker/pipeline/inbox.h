// Holds what arrived for this stage until the executor asks for it. Keyed by tag, so the order of
// arrival cannot deadlock; bounded, because a sender holds a credit per tensor in flight.
// Thread-safe. Link threads Put, only the executor Takes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/arena.h"
#include "worker/pipeline/tag.h"

namespace headrace {

// A received tensor: in a pool slot (activations, gradients, ties), or small and inline (norms,
// decisions, tokens).
struct Received {
  Tag tag;
  Tensor tensor;  // points into slot, or into inline_bytes
  Slot slot;
  std::vector<char> inline_bytes;
};

// What the plan says may arrive: a frame is checked against this before a byte is copied.
struct Expectation {
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;
  Pool* pool = nullptr;  // null: small, inline
};

class Inbox {
 public:
  // Tells what a tag's tensor must look like, or why the tag is not expected at all (wrong stage,
  // kind or micro-batch). Pure; called on link threads.
  using Expect = std::function<absl::StatusOr<Expectation>(const Tag& tag)>;

  explicit Inbox(Expect expect);

  // Memory for an incoming tensor. Never blocks.
  //   INVALID_ARGUMENT    not expected, or of another shape, size or type (says which and what was
  //                       expected)
  //   RESOURCE_EXHAUSTED  the sender ignored its credit
  absl::StatusOr<Received> Prepare(const Tag& tag, ElementType type,
                                   const std::vector<int64_t>& shape);
  // ALREADY_EXISTS: the tag is waiting already, or (pipelined kinds) was taken in this step.
  absl::Status Put(Received received);

  // Waits for `tag`. On return the sender's credit is given back (through `on_taken`).
  //   DEADLINE_EXCEEDED  names the tag and how long it waited
  //   what Fail said     the peer it waits for is lost
  //   CANCELLED          Close was called
  absl::StatusOr<Received> Take(const Tag& tag, absl::Time deadline);

  // The link from `stage` is broken: Takes of tensors from it fail with `cause`, now and later.
  void Fail(int stage, absl::Status cause);
  void Close();
  // Called after each Take, outside the lock, with the taken tensor's tag.
  void OnTaken(std::function<void(const Tag&)> on_taken);
};

}  // namespace headrace
