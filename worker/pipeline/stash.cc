#include "worker/pipeline/stash.h"

#include <utility>

#include "common/status.h"

namespace headrace {
namespace {

// Generating keeps one boundary at a time and nothing for backward.
StashPeak Peak(const StageShape& shape, const std::vector<Action>& actions) {
  return shape.training ? PeakStash(shape, actions) : StashPeak{1, 0, BoundaryBytes(shape)};
}

// On stage > 0 arrived activations wait in the pool they will be kept in: nothing is copied.
int64_t NumBoundarySlots(const StageShape& shape, const StashPeak& peak) {
  return peak.boundaries + (shape.stage > 0 ? shape.credits : 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stash>> Stash::Create(const StageShape& shape,
                                                     const std::vector<Action>& actions,
                                                     int micro_batches, Arena* arena,
                                                     SharedRegion* shared) {
  const StashPeak peak = Peak(shape, actions);
  std::unique_ptr<Stash> stash(new Stash());
  HEADRACE_ASSIGN_OR_RETURN(
      stash->boundaries_,
      arena->CarvePool("boundary activations", BoundaryBytes(shape),
                       static_cast<int>(NumBoundarySlots(shape, peak)), shared));
  if (WorkingSetBytes(shape) > 0 && peak.working_sets > 0) {
    HEADRACE_ASSIGN_OR_RETURN(stash->working_sets_,
                              arena->CarvePool("working sets", WorkingSetBytes(shape),
                                               static_cast<int>(peak.working_sets)));
  }
  stash->kept_.resize(micro_batches);
  return stash;
}

int64_t Stash::CarvedBytes(const StageShape& shape, const std::vector<Action>& actions) {
  const StashPeak peak = Peak(shape, actions);
  return NumBoundarySlots(shape, peak) * BoundaryBytes(shape) +
         peak.working_sets * WorkingSetBytes(shape);
}

int64_t Stash::BoundaryPoolBytes(const StageShape& shape, const std::vector<Action>& actions) {
  return NumBoundarySlots(shape, Peak(shape, actions)) * BoundaryBytes(shape);
}

absl::StatusOr<void*> Stash::OpenBoundary(int m) {
  HEADRACE_ASSIGN_OR_RETURN(kept_[m].boundary, boundaries_->Acquire(MemoryKind::kStash));
  return kept_[m].boundary.data();
}

void Stash::KeepBoundary(int m, Slot arrived) {
  arrived.Relabel(MemoryKind::kStash);
  kept_[m].boundary = std::move(arrived);
}

absl::StatusOr<void*> Stash::OpenWorkingSet(int m) {
  if (working_sets_ == nullptr) return nullptr;
  HEADRACE_ASSIGN_OR_RETURN(kept_[m].working_set, working_sets_->Acquire(MemoryKind::kStash));
  return kept_[m].working_set.data();
}

const void* Stash::working_set(int m) const {
  return kept_[m].working_set.valid() ? kept_[m].working_set.data() : nullptr;
}

void Stash::Release(int m) { kept_[m] = Kept{}; }

}  // namespace headrace
