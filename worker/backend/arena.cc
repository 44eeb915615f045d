#include "worker/backend/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plan/alignment.h"

namespace headrace {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kTooMany = std::numeric_limits<int64_t>::max() / 2;

// a * b rounded up to kAlignment, or kTooMany where that overflows: no arena is that large.
int64_t CheckedBytes(int64_t a, int64_t b) {
  int64_t bytes = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &bytes) || bytes >= kTooMany) return kTooMany;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t TensorBytes(ElementType type, const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) return kTooMany;
  }
  return CheckedBytes(elements, ElementBytes(type));
}

}  // namespace

std::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kWeights:
      return "weights";
    case MemoryKind::kGradients:
      return "gradients";
    case MemoryKind::kOptimizer:
      return "optimizer";
    case MemoryKind::kStash:
      return "stash";
    case MemoryKind::kWorkspace:
      return "workspace";
    case MemoryKind::kLink:
      return "link";
  }
  return "unknown";
}

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(int64_t capacity_bytes) {
  if (capacity_bytes < 0 || capacity_bytes >= kTooMany) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an arena of ", capacity_bytes, " bytes is not possible"));
  }
  // Room to start at a huge page, so that the system can back all of it with huge pages.
  const int64_t mapped = capacity_bytes + kHugePage;
  void* base = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the system refuses an arena of ", capacity_bytes, " bytes: ", std::strerror(errno)));
  }
  // Advice only: where it is refused, everything works with small pages.
  madvise(base, static_cast<size_t>(mapped), MADV_HUGEPAGE);
  return std::unique_ptr<Arena>(new Arena(static_cast<char*>(base), mapped, capacity_bytes));
}

std::unique_ptr<Arena> Arena::Over(void* memory, int64_t capacity_bytes) {
  return std::unique_ptr<Arena>(new Arena(static_cast<char*>(memory), 0, capacity_bytes));
}

Arena::Arena(char* base, int64_t mapped_bytes, int64_t capacity_bytes)
    : base_(base), mapped_bytes_(mapped_bytes), capacity_bytes_(capacity_bytes) {}

Arena::~Arena() {
  if (mapped_bytes_ > 0) munmap(base_, static_cast<size_t>(mapped_bytes_));
}

absl::StatusOr<char*> Arena::Take(const std::string& what, int64_t bytes) {
  const int64_t left = capacity_bytes_ - carved_bytes_;
  if (bytes > left) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, " needs ", bytes >= kTooMany ? "more than 2^62" : absl::StrCat(bytes), " bytes, ",
        left, " of ", capacity_bytes_, " are left (in use: ", Summary(), ")"));
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(base_);
  const uintptr_t aligned =
      mapped_bytes_ > 0 ? (start + kHugePage - 1) / kHugePage * kHugePage : start;
  char* piece = base_ + (aligned - start) + carved_bytes_;
  carved_bytes_ += bytes;
  return piece;
}

void Arena::Add(MemoryKind kind, int64_t bytes) {
  Account& account = accounts_[static_cast<size_t>(kind)];
  account.in_use += bytes;
  account.peak = std::max(account.peak, account.in_use);
}

std::string Arena::Summary() const {
  std::string text;
  for (int k = 0; k < kNumMemoryKinds; ++k) {
    absl::StrAppend(&text, std::string(MemoryKindName(static_cast<MemoryKind>(k))), " ",
                    accounts_[static_cast<size_t>(k)].in_use, ", ");
  }
  return absl::StrCat(text, "set aside for pools ", pool_bytes_);
}

absl::StatusOr<Tensor> Arena::Carve(MemoryKind kind, std::string_view name, ElementType type,
                                    std::vector<int64_t> shape) {
  const int64_t bytes = TensorBytes(type, shape);
  absl::MutexLock lock(&mu_);
  absl::StatusOr<char*> piece = Take(
      absl::StrCat(std::string(MemoryKindName(kind)), " tensor '", std::string(name), "'"), bytes);
  if (!piece.ok()) return piece.status();
  Add(kind, bytes);
  return Tensor{*piece, type, std::move(shape)};
}

absl::StatusOr<Pool*> Arena::CarvePool(std::string_view name, int64_t slot_bytes, int num_slots,
                                       SharedRegion* region) {
  const int64_t rounded = CheckedBytes(slot_bytes, 1);
  const int64_t bytes = CheckedBytes(rounded, num_slots);
  absl::MutexLock lock(&mu_);
  absl::StatusOr<char*> piece =
      region != nullptr ? region->Carve(bytes)
                        : Take(absl::StrCat("pool '", std::string(name), "' of ", num_slots,
                                            " slots of ", slot_bytes, " bytes"),
                               bytes);
  if (!piece.ok()) return piece.status();
  if (region == nullptr) pool_bytes_ += bytes;
  pools_.push_back(
      std::unique_ptr<Pool>(new Pool(this, std::string(name), *piece, rounded, num_slots)));
  return pools_.back().get();
}

int64_t Arena::left_bytes() const {
  absl::MutexLock lock(&mu_);
  return capacity_bytes_ - carved_bytes_;
}

int64_t Arena::in_use(MemoryKind kind) const {
  absl::MutexLock lock(&mu_);
  return accounts_[static_cast<size_t>(kind)].in_use;
}

int64_t Arena::peak(MemoryKind kind) const {
  absl::MutexLock lock(&mu_);
  return accounts_[static_cast<size_t>(kind)].peak;
}

Pool::Pool(Arena* arena, std::string name, char* base, int64_t slot_bytes, int num_slots)
    : arena_(arena),
      name_(std::move(name)),
      base_(base),
      slot_bytes_(slot_bytes),
      num_slots_(num_slots) {
  for (int i = num_slots - 1; i >= 0; --i) free_.push_back(i);
}

absl::StatusOr<Slot> Pool::Acquire(MemoryKind kind) {
  absl::MutexLock lock(&arena_->mu_);
  if (free_.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "pool '", name_, "': all ", num_slots_, " slots of ", slot_bytes_, " bytes are in use"));
  }
  const int index = free_.back();
  free_.pop_back();
  arena_->Add(kind, slot_bytes_);
  return Slot(this, index, kind);
}

int Pool::free_slots() const {
  absl::MutexLock lock(&arena_->mu_);
  return static_cast<int>(free_.size());
}

Slot::Slot(Slot&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      index_(std::exchange(other.index_, -1)),
      kind_(other.kind_) {}

Slot& Slot::operator=(Slot&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    index_ = std::exchange(other.index_, -1);
    kind_ = other.kind_;
  }
  return *this;
}

Slot::~Slot() { Release(); }

void Slot::Release() {
  if (pool_ == nullptr) return;
  {
    absl::MutexLock lock(&pool_->arena_->mu_);
    pool_->free_.push_back(index_);
    pool_->arena_->Add(kind_, -pool_->slot_bytes_);
  }
  pool_ = nullptr;
  index_ = -1;
}

void* Slot::data() const { return valid() ? pool_->base_ + index_ * pool_->slot_bytes_ : nullptr; }

int64_t Slot::bytes() const { return valid() ? pool_->slot_bytes_ : 0; }

void Slot::Relabel(MemoryKind kind) {
  if (pool_ == nullptr || kind == kind_) return;
  absl::MutexLock lock(&pool_->arena_->mu_);
  pool_->arena_->Add(kind_, -pool_->slot_bytes_);
  pool_->arena_->Add(kind, pool_->slot_bytes_);
  kind_ = kind;
}

}  // namespace headrace
