// Kept activations of the micro-batches in flight (GPipe §2.3): the boundary, which is the stage's
// input, from the start of F to the end of B; and the working set, which is all that the layers
// save, from the start of F, or of R where the micro-batch is recomputed, to the end of B.
//
// Evaluation and `generate` keep one boundary at a time; and no working set, but where every F of a
// step keeps one, so that the workspace has no room to keep nothing (StageShape::recomputes).
//
// Slots come from pools carved before step 1 for the peak that plan/stage_memory.h predicts, so a
// step allocates nothing, and the arena's measured peak of kStash is that prediction. Owned by the
// compute thread; only the boundary pool is shared (link threads fill it).
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/stage_memory.h"
#include "worker/backend/arena.h"

namespace headrace {

class Stash {
 public:
  // Carves the pools, that of the boundaries in `shared` (null: in the arena). Both must outlive
  // the stash.
  //   RESOURCE_EXHAUSTED  as Arena::CarvePool
  static absl::StatusOr<std::unique_ptr<Stash>> Create(const StageShape& shape,
                                                       const std::vector<Action>& actions,
                                                       int micro_batches, Arena* arena,
                                                       SharedRegion* shared = nullptr);

  // Bytes of address space Create carves: PeakStash, and on stage > 0 the activations that have
  // arrived but wait.
  static int64_t CarvedBytes(const StageShape& shape, const std::vector<Action>& actions);
  // Of those, the boundaries'.
  static int64_t BoundaryPoolBytes(const StageShape& shape, const std::vector<Action>& actions);

  // Where arriving activations land (stage > 0): one slot for each boundary kept and each credit.
  Pool* boundary_pool() { return boundaries_; }

  // Stage 0: room for the token ids of micro-batch `m`. RESOURCE_EXHAUSTED: more in flight than the
  // actions said.
  absl::StatusOr<void*> OpenBoundary(int m);
  // Stage > 0: keeps the activation that arrived for `m`; from here on it counts as stash.
  void KeepBoundary(int m, Slot arrived);
  // Room for the working set of `m`; null if the layers save nothing. Errors as OpenBoundary.
  absl::StatusOr<void*> OpenWorkingSet(int m);

  const void* boundary(int m) const { return kept_[m].boundary.data(); }
  const void* working_set(int m) const;
  // End of B: both slots are free again.
  void Release(int m);

 private:
  struct Kept {
    Slot boundary;
    Slot working_set;
  };

  Stash() = default;

  Pool* boundaries_ = nullptr;
  Pool* working_sets_ = nullptr;  // null: the layers save nothing
  std::vector<Kept> kept_;        // by micro-batch
};

}  // namespace headrace
