#include "worker/backend/arena.h"

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/alignment.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Arena> MakeArena(int64_t bytes) {
  auto arena = Arena::Create(bytes);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return std::move(arena).value();
}

TEST(Arena, CarvesZeroedAlignedTensorsAndCountsRoundedBytes) {
  auto arena = MakeArena(1 << 20);
  for (int64_t elements : {1, 7, 16, 17, 1000}) {
    auto tensor = arena->Carve(MemoryKind::kWeights, "w", ElementType::kFloat32, {elements});
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->data) % kAlignment, 0u);
    for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(tensor->f32()[i], 0.0f);
    std::memset(tensor->data, 0xff, static_cast<size_t>(tensor->bytes()));
  }
  EXPECT_EQ(arena->in_use(MemoryKind::kWeights), 64 + 64 + 64 + 128 + 4032);
  EXPECT_EQ(arena->in_use(MemoryKind::kGradients), 0);
  EXPECT_EQ(arena->left_bytes(), (1 << 20) - 4352);
}

TEST(Arena, TheLastByteOfTheCapacityCanBeUsedAndNotOneMore) {
  auto arena = MakeArena(4096);
  auto whole = arena->Carve(MemoryKind::kOptimizer, "m", ElementType::kFloat64, {512});
  ASSERT_TRUE(whole.ok());
  std::memset(whole->data, 1, 4096);
  EXPECT_EQ(arena->Carve(MemoryKind::kOptimizer, "v", ElementType::kInt32, {1}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(Arena, OverMemoryOfSomebodyElseCarvesThereAndLeavesItAlone) {
  alignas(kAlignment) char memory[1024] = {};
  {
    const auto arena = Arena::Over(memory, sizeof(memory));
    const auto first = arena->Carve(MemoryKind::kWeights, "w", ElementType::kFloat32, {3});
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(first->data, memory);
    const auto pool = arena->CarvePool("stash", 100, 2);
    ASSERT_TRUE(pool.ok()) << pool.status();
    EXPECT_EQ((*pool)->Acquire(MemoryKind::kStash)->data(), memory + 64);
    EXPECT_EQ(arena->left_bytes(), 1024 - 64 - 2 * 128);
    EXPECT_FALSE(arena->Carve(MemoryKind::kWeights, "x", ElementType::kFloat32, {1000}).ok());
  }
  for (char byte : memory) EXPECT_EQ(byte, 0);  // still here, and untouched
}

TEST(Arena, ExhaustionNamesTheTensorItsBytesWhatIsLeftAndWhoHoldsTheRest) {
  auto arena = MakeArena(1024);
  ASSERT_TRUE(arena->Carve(MemoryKind::kWeights, "w", ElementType::kFloat32, {16}).ok());
  ASSERT_TRUE(arena->CarvePool("stash", 128, 2).ok());
  const absl::Status status =
      arena->Carve(MemoryKind::kGradients, "h.0.attn", ElementType::kFloat32, {200}).status();
  EXPECT_EQ(
      status.message(),
      "gradients tensor 'h.0.attn' needs 832 bytes, 704 of 1024 are left (in use: weights 64, "
      "gradients 0, optimizer 0, stash 0, workspace 0, link 0, set aside for pools 256)");
  EXPECT_EQ(arena->in_use(MemoryKind::kGradients), 0) << "a refused tensor must not be counted";
  EXPECT_THAT(arena->CarvePool("link", 512, 2).status().message(),
              HasSubstr("pool 'link' of 2 slots of 512 bytes needs 1024 bytes"));
}

TEST(Arena, SizesThatOverflowAreRefused) {
  auto arena = MakeArena(1024);
  const int64_t huge = int64_t{1} << 40;
  EXPECT_THAT(arena->Carve(MemoryKind::kWeights, "w", ElementType::kFloat32, {huge, huge})
                  .status()
                  .message(),
              HasSubstr("weights tensor 'w' needs more than 2^62 bytes"));
  EXPECT_FALSE(arena->Carve(MemoryKind::kWeights, "w", ElementType::kFloat32, {-1}).ok());
  EXPECT_FALSE(arena->CarvePool("p", int64_t{1} << 61, 16).ok());
  EXPECT_FALSE(Arena::Create(-1).ok());
  EXPECT_EQ(Arena::Create(int64_t{1} << 60).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Pool, CountsASlotOnlyWhileItIsHeld) {
  auto arena = MakeArena(1 << 16);
  Pool* pool = arena->CarvePool("stash", 100, 3).value();
  EXPECT_EQ(pool->slot_bytes(), 128);
  EXPECT_EQ(arena->in_use(MemoryKind::kStash), 0);
  {
    Slot a = pool->Acquire(MemoryKind::kStash).value();
    Slot b = pool->Acquire(MemoryKind::kStash).value();
    EXPECT_NE(a.data(), b.data());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % kAlignment, 0u);
    EXPECT_EQ(b.bytes(), 128);
    EXPECT_EQ(pool->free_slots(), 1);
    EXPECT_EQ(arena->in_use(MemoryKind::kStash), 256);
  }
  EXPECT_EQ(pool->free_slots(), 3);
  EXPECT_EQ(arena->in_use(MemoryKind::kStash), 0);
  EXPECT_EQ(arena->peak(MemoryKind::kStash), 256);
}

TEST(Pool, WithoutAFreeSlotNamesItself) {
  auto arena = MakeArena(1 << 16);
  Pool* pool = arena->CarvePool("activation", 64, 1).value();
  Slot held = pool->Acquire(MemoryKind::kLink).value();
  EXPECT_EQ(pool->Acquire(MemoryKind::kLink).status(),
            absl::ResourceExhaustedError("pool 'activation': all 1 slots of 64 bytes are in use"));
}

TEST(Slot, RelabelMovesTheBytesToTheOtherAccount) {
  auto arena = MakeArena(1 << 16);
  Pool* pool = arena->CarvePool("activation", 256, 2).value();
  Slot slot = pool->Acquire(MemoryKind::kLink).value();
  slot.Relabel(MemoryKind::kStash);
  EXPECT_EQ(arena->in_use(MemoryKind::kLink), 0);
  EXPECT_EQ(arena->in_use(MemoryKind::kStash), 256);
  EXPECT_EQ(arena->peak(MemoryKind::kLink), 256);
  slot = Slot();
  EXPECT_EQ(arena->in_use(MemoryKind::kStash), 0);
}

TEST(Slot, MovingKeepsOneOwner) {
  auto arena = MakeArena(1 << 16);
  Pool* pool = arena->CarvePool("activation", 64, 2).value();
  Slot a = pool->Acquire(MemoryKind::kLink).value();
  void* data = a.data();
  Slot b = std::move(a);
  EXPECT_FALSE(a.valid());  // NOLINT: what a moved-from slot is, is its contract
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(b.data(), data);
  b = pool->Acquire(MemoryKind::kLink).value();
  EXPECT_EQ(pool->free_slots(), 1) << "the slot b held went back";
}

TEST(Pool, ManyThreadsLeaveTheAccountsExact) {
  auto arena = MakeArena(1 << 16);
  Pool* pool = arena->CarvePool("activation", 64, 8).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([pool] {
      for (int i = 0; i < 5000; ++i) {
        Slot a = pool->Acquire(MemoryKind::kLink).value();
        Slot b = pool->Acquire(MemoryKind::kStash).value();
        a.Relabel(MemoryKind::kStash);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->free_slots(), 8);
  EXPECT_EQ(arena->in_use(MemoryKind::kLink), 0);
  EXPECT_EQ(arena->in_use(MemoryKind::kStash), 0);
  EXPECT_LE(arena->peak(MemoryKind::kStash), 8 * 64);
}

}  // namespace
}  // namespace headrace
