// All memory of one stage, taken once before step 1 and accounted kind by kind.
//
// Static tensors (weights, gradients, optimizer, workspace) are carved at the start; what moves
// (stash, link) lives in pools of equal slots, so nothing fragments and nothing is allocated inside
// a step. Giving memory back to malloc between steps costs 1.3–3× (docs/performance.md).
//
//   |<---------------------------- capacity_bytes ---------------------------->|
//   | weights | gradients | workspace | pool: slot slot slot | pool … |  left   |
//   each piece starts at a multiple of kAlignment and is rounded up to one
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/shared_region.h"
#include "worker/backend/tensor.h"

namespace headrace {

enum class MemoryKind { kWeights, kGradients, kOptimizer, kStash, kWorkspace, kLink };
inline constexpr int kNumMemoryKinds = 6;
// "weights", "gradients", "optimizer", "stash", "workspace", "link".
std::string_view MemoryKindName(MemoryKind kind);

class Arena;
class Pool;

// One slot of a pool; goes back when destroyed. Movable, not copyable. Any thread.
class Slot {
 public:
  Slot() = default;
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&& other) noexcept;
  ~Slot();

  void* data() const;     // null if not valid; holds whatever the last user left
  int64_t bytes() const;  // the slot's size, also what is accounted; 0 if not valid
  bool valid() const { return pool_ != nullptr; }
  const Pool* pool() const { return pool_; }
  // Moves the slot's bytes from one kind's account to another's (a received activation becomes
  // stash).
  void Relabel(MemoryKind kind);

 private:
  friend class Pool;
  Slot(Pool* pool, int index, MemoryKind kind) : pool_(pool), index_(index), kind_(kind) {}
  void Release();

  Pool* pool_ = nullptr;
  int index_ = -1;
  MemoryKind kind_ = MemoryKind::kLink;
};

// Reserves address space of `capacity_bytes` and counts what is in use. Thread-safe.
class Arena {
 public:
  // Pages are taken from the system when first touched.
  //   RESOURCE_EXHAUSTED: the system refuses that much memory.
  static absl::StatusOr<std::unique_ptr<Arena>> Create(int64_t capacity_bytes);
  // An arena over memory somebody else owns, such as a device's: zero-filled, aligned to
  // kAlignment, never touched by the arena itself. It must outlive the arena.
  static std::unique_ptr<Arena> Over(void* memory, int64_t capacity_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A zero-filled tensor that lives as long as the arena. Counts its bytes rounded up to
  // kAlignment.
  //   RESOURCE_EXHAUSTED  names the tensor, its bytes, what is left, and bytes in use by kind
  absl::StatusOr<Tensor> Carve(MemoryKind kind, std::string_view name, ElementType type,
                               std::vector<int64_t> shape);
  // `num_slots` slots of `slot_bytes` (rounded up to kAlignment); counted only while a slot is
  // held. The arena owns the pool. With a `region`, which must outlive the arena, the slots lie
  // there and take none of what is left here, but count the same. Errors as Carve.
  absl::StatusOr<Pool*> CarvePool(std::string_view name, int64_t slot_bytes, int num_slots,
                                  SharedRegion* region = nullptr);

  int64_t capacity_bytes() const { return capacity_bytes_; }
  // Bytes not yet carved.
  int64_t left_bytes() const;
  int64_t in_use(MemoryKind kind) const;
  int64_t peak(MemoryKind kind) const;

 private:
  friend class Pool;
  friend class Slot;
  struct Account {
    int64_t in_use = 0;
    int64_t peak = 0;
  };

  Arena(char* base, int64_t mapped_bytes, int64_t capacity_bytes);

  // Takes `bytes`, a multiple of kAlignment, from what is left; `what` names them in the error.
  absl::StatusOr<char*> Take(const std::string& what, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Add(MemoryKind kind, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string Summary() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  char* const base_;
  const int64_t mapped_bytes_;  // 0: not ours
  const int64_t capacity_bytes_;
  mutable absl::Mutex mu_;
  int64_t carved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t pool_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of carved_bytes_, held by pools
  std::array<Account, kNumMemoryKinds> accounts_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Pool>> pools_ ABSL_GUARDED_BY(mu_);
};

// Thread-safe. Must not outlive its arena, nor be outlived by a Slot.
class Pool {
 public:
  // Never blocks. RESOURCE_EXHAUSTED: no free slot (names the pool); a caller that keeps to the
  // plan's credits and actions never sees it.
  absl::StatusOr<Slot> Acquire(MemoryKind kind);
  int64_t slot_bytes() const { return slot_bytes_; }
  int num_slots() const { return num_slots_; }
  int free_slots() const;

 private:
  friend class Arena;
  friend class Slot;
  Pool(Arena* arena, std::string name, char* base, int64_t slot_bytes, int num_slots);

  Arena* const arena_;
  const std::string name_;
  char* const base_;
  const int64_t slot_bytes_;
  const int num_slots_;
  std::vector<int> free_ ABSL_GUARDED_BY(arena_->mu_);  // indices; the last one freed goes first
};

}  // namespace headrace
