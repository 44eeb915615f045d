#include "common/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "absl/time/clock.h"

namespace headrace {
namespace {

absl::Time Soon() { return absl::Now() + absl::Seconds(10); }

TEST(BoundedQueueTest, GivesItemsBackInTheOrderTheyCame) {
  BoundedQueue<int> queue(100);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(queue.Push(i, 1, Soon()).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(*queue.Pop(Soon()), i);
}

TEST(BoundedQueueTest, MovesItemsThatCannotBeCopied) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  ASSERT_TRUE(queue.Push(std::make_unique<int>(7), 1, Soon()).ok());
  EXPECT_EQ(**queue.Pop(Soon()), 7);
}

TEST(BoundedQueueTest, RefusesWhatDoesNotFitUntilItsDeadline) {
  BoundedQueue<int> queue(10);
  ASSERT_TRUE(queue.Push(1, 6, Soon()).ok());
  EXPECT_EQ(queue.Push(2, 5, absl::Now()).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(queue.Push(3, 4, absl::Now()).ok());
  EXPECT_EQ(queue.used(), 10);
}

TEST(BoundedQueueTest, TakesAnItemHeavierThanItselfWhenEmpty) {
  BoundedQueue<int> queue(10);
  ASSERT_TRUE(queue.Push(1, 50, absl::Now()).ok());
  EXPECT_FALSE(queue.Push(2, 1, absl::Now()).ok());
  EXPECT_EQ(*queue.Pop(Soon()), 1);
  EXPECT_EQ(queue.used(), 0);
}

TEST(BoundedQueueTest, AWaitingPushGoesOnWhenThereIsRoom) {
  BoundedQueue<int> queue(1);
  ASSERT_TRUE(queue.Push(1, 1, Soon()).ok());
  std::thread pusher([&] { EXPECT_TRUE(queue.Push(2, 1, Soon()).ok()); });
  EXPECT_EQ(*queue.Pop(Soon()), 1);
  EXPECT_EQ(*queue.Pop(Soon()), 2);
  pusher.join();
}

TEST(BoundedQueueTest, PopOfAnEmptyQueueEndsAtItsDeadline) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.Pop(absl::Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(BoundedQueueTest, ClosingDrains) {
  BoundedQueue<int> queue(10);
  ASSERT_TRUE(queue.Push(1, 1, Soon()).ok());
  queue.Close();
  EXPECT_EQ(queue.Push(2, 1, Soon()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(*queue.Pop(Soon()), 1);
  EXPECT_EQ(queue.Pop(Soon()).status().code(), absl::StatusCode::kCancelled);
}

TEST(BoundedQueueTest, ClosingWakesBothSides) {
  BoundedQueue<int> full(1), empty(1);
  ASSERT_TRUE(full.Push(1, 1, Soon()).ok());
  std::thread pusher(
      [&] { EXPECT_EQ(full.Push(2, 1, Soon()).code(), absl::StatusCode::kCancelled); });
  std::thread popper(
      [&] { EXPECT_EQ(empty.Pop(Soon()).status().code(), absl::StatusCode::kCancelled); });
  full.Close();
  empty.Close();
  pusher.join();
  popper.join();
}

}  // namespace
}  // namespace headrace
