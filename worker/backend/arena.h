// All memory of one stage, taken once before step 1 and accounted kind by kind.
//
// Static tensors (weights, gradients, optimizer, workspace) are carved at the start; what moves
// (stash, link) lives in pools of equal slots, so nothing fragments and nothing is allocated inside
// a step. Giving memory back to malloc between steps costs 1.3–3× (docs/performance.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/tensor.h"

namespace headrace {

enum class MemoryKind { kWeights, kGradients, kOptimizer, kStash, kWorkspace, kLink };
inline constexpr int kNumMemoryKinds = 6;
std::string_view MemoryKindName(MemoryKind kind);

class Pool;

// One slot of a pool; goes back when destroyed. Movable, not copyable. Any thread.
class Slot {
 public:
  Slot() = default;
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&& other) noexcept;
  ~Slot();

  void* data() const;
  int64_t bytes() const;  // the slot's size, also what is accounted
  bool valid() const { return pool_ != nullptr; }
  // Moves the slot's bytes from one kind's account to another's (a received activation becomes stash).
  void Relabel(MemoryKind kind);

 private:
  friend class Pool;
  Pool* pool_ = nullptr;
  int index_ = -1;
  MemoryKind kind_ = MemoryKind::kLink;
};

// Reserves address space of `capacity_bytes` and counts what is in use. Thread-safe.
class Arena {
 public:
  // RESOURCE_EXHAUSTED: the system refuses that much memory.
  static absl::StatusOr<std::unique_ptr<Arena>> Create(int64_t capacity_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A zero-filled tensor that lives as long as the arena.
  //   RESOURCE_EXHAUSTED  names the tensor, its bytes, what is left, and bytes in use by kind
  absl::StatusOr<Tensor> Carve(MemoryKind kind, std::string_view name, ElementType type,
                               std::vector<int64_t> shape);
  // `num_slots` slots of `slot_bytes`; counted only while a slot is held. Errors as Carve.
  absl::StatusOr<Pool*> CarvePool(std::string_view name, int64_t slot_bytes, int num_slots);

  int64_t capacity_bytes() const;
  int64_t in_use(MemoryKind kind) const;
  int64_t peak(MemoryKind kind) const;

 private:
  Arena() = default;
  friend class Pool;
  friend class Slot;
  // The backend's helper completes this; data members are private to arena.cc's design.
};

// Thread-safe. Must not outlive its arena, nor be outlived by a Slot.
class Pool {
 public:
  // Never blocks. RESOURCE_EXHAUSTED: no free slot (names the pool); a caller that keeps to the
  // plan's credits and actions never sees it.
  absl::StatusOr<Slot> Acquire(MemoryKind kind);
  int64_t slot_bytes() const;
  int free_slots() const;
};

}  // namespace headrace
