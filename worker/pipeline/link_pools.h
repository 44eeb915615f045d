// Memory of tensors on their way between stages, and what may arrive at all. Input pools that a
// stage of the same host fills lie in shared memory; they are the same pools, and count the same.
//
//            activations in ─▶ ┌─────────┐ ─▶ activations out
//   stage k−1 (boundary pool)  │ stage k │                     stage k+1
//            gradients out  ◀─ └─────────┘ ◀─ gradients in
//
// Where tensors lie in a device's memory, each of these has a pool of host memory beside it, its
// stage of the way: what arrives waits there until it is taken, what leaves stays there until it has
// left. An input's is what a sender of this host fills.
//
//   link ─▶ staged.activations_in ─copy─▶ activations_in ─▶ layers
//
// With c credits an edge carries at most c tensors of a class that nobody has taken; one more slot
// is being filled (out) or used (in). plan/stage_memory.h counts the same as kLink.
#pragma once

#include "absl/status/statusor.h"
#include "worker/backend/arena.h"
#include "worker/pipeline/inbox.h"
#include "worker/pipeline/shared_inputs.h"
#include "worker/pipeline/stage_job.h"

namespace headrace {

// Host memory beside a device's pools; all null where tensors lie in host memory.
struct StagedPools {
  Pool* activations_in = nullptr;
  Pool* activations_out = nullptr;
  Pool* gradients_in = nullptr;
  Pool* gradients_out = nullptr;
  Pool* tie_in = nullptr;
  Pool* tie_out = nullptr;
};

// Borrowed from the arena; null where the stage has no such edge.
struct LinkPools {
  Pool* activations_in = nullptr;  // the stash's boundary pool
  Pool* activations_out = nullptr;
  Pool* gradients_in = nullptr;
  Pool* gradients_out = nullptr;
  Pool* tie_in = nullptr;  // stage 0: the head's gradient; last stage: the new weight
  StagedPools staged;

  // Carves all but `boundary_pool`, which Stash carved; those that a sender of this host fills, in
  // `shared` (null: none). `staging`: null where tensors lie in host memory.
  //   RESOURCE_EXHAUSTED  as Arena::CarvePool
  static absl::StatusOr<LinkPools> Create(const StageJob& job, Pool* boundary_pool, Arena* arena,
                                          SharedRegion* shared = nullptr,
                                          Arena* staging = nullptr);
  // Bytes Create carves in `arena`.
  static int64_t CarvedBytes(const StageJob& job);
  // Bytes it carves in `staging`, but for those in `shared`; `shares`: there is one.
  static int64_t StagedBytes(const StageJob& job, bool shares);
};

// The stage whose tensors of a class arrive in a pool here; −1: none's do.
int InputFrom(const StageJob& job, CreditClass credit_class);
// Some stage of this host sends to this one, so that its input pools may lie in shared memory.
bool HasSharedInputs(const StageJob& job);
// The bytes of a SharedRegion with all the pools that lie in it.
int64_t SharedInputBytes(const StageJob& job);
// For the transport; `region` as given to Create, `why_none` if it is null.
SharedInputs DescribeSharedInputs(const StageJob& job, const LinkPools& pools,
                                  const SharedRegion* region, std::string why_none);

// The shape of a tied weight: [vocabulary, width].
std::vector<int64_t> TieShape(const StageJob& job);

// Sequence length when generating token `index`: the prompt and what was drawn, at most the
// context.
int64_t GenerateLength(const StageJob& job, int64_t index);

// Of a tensor with this tag, one that Expect accepts. [tokens, width], [vocabulary, width] or
// [numbers].
std::vector<int64_t> ShapeOf(const StageJob& job, const Tag& tag);
// What it weighs on a link.
int64_t BytesOf(const StageJob& job, const Tag& tag);

// What travels in place of a tensor whose payload takes declared time only.
inline constexpr int64_t kHollowElements = 1;

// What `tag` must look like when it arrives at this stage, for Inbox.
//   INVALID_ARGUMENT  why such a tensor is not expected here: wrong kind, stage, step, chunk or
//                     micro-batch
absl::StatusOr<Expectation> Expect(const StageJob& job, const LinkPools& pools, const Tag& tag);

}  // namespace headrace
