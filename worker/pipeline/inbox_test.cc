#include "worker/pipeline/inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

#include "absl/time/clock.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr int kSlots = 2;

Tag Activation(int64_t step, int micro_batch) {
  return {.kind = v1::MESSAGE_KIND_ACTIVATION,
          .from_stage = 0,
          .step = step,
          .micro_batch = micro_batch};
}

Tag Norm(int64_t step) {
  return {.kind = v1::MESSAGE_KIND_NORM_PARTIAL, .from_stage = 0, .step = step};
}

class InboxTest : public ::testing::Test {
 protected:
  InboxTest()
      : arena_(*Arena::Create(1 << 20)),
        pool_(*arena_->CarvePool("activations", 4 * 6, kSlots)),
        inbox_([this](const Tag& tag) { return Expect(tag); }) {}

  absl::StatusOr<Expectation> Expect(const Tag& tag) {
    if (tag.kind == v1::MESSAGE_KIND_NORM_PARTIAL) {
      return Expectation{.type = ElementType::kFloat64, .shape = {1}};
    }
    if (tag.kind != v1::MESSAGE_KIND_ACTIVATION || tag.micro_batch >= 8) {
      return absl::InvalidArgumentError(ToText(tag) + ": not expected");
    }
    return Expectation{.shape = {2, 3}, .pool = pool_};
  }

  absl::Status Arrive(const Tag& tag, float value) {
    absl::StatusOr<Received> received = inbox_.Prepare(tag, ElementType::kFloat32, {2, 3});
    if (!received.ok()) return received.status();
    for (int i = 0; i < 6; ++i) received->tensor.f32()[i] = value;
    return inbox_.Put(*std::move(received));
  }

  static absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

  std::unique_ptr<Arena> arena_;
  Pool* pool_;
  Inbox inbox_;
};

TEST(Tag, SaysWhatItNames) {
  EXPECT_EQ(
      ToText({.kind = v1::MESSAGE_KIND_ACTIVATION, .from_stage = 1, .step = 12, .micro_batch = 3}),
      "activation of step 12, micro-batch 3, from stage 1");
  EXPECT_EQ(ToText({.kind = v1::MESSAGE_KIND_DECISION, .from_stage = 2, .step = 4}),
            "decision of step 4, from stage 2");
  EXPECT_EQ(ToText({.kind = v1::MESSAGE_KIND_GRADIENT, .from_stage = 1, .step = 1, .chunk = 2}),
            "gradient of step 1, micro-batch 0, chunk 2, from stage 1");
}

TEST_F(InboxTest, HandsOverByTagWhateverTheOrderOfArrival) {
  ASSERT_TRUE(Arrive(Activation(1, 1), 11).ok());
  ASSERT_TRUE(Arrive(Activation(1, 0), 10).ok());
  absl::StatusOr<Received> first = inbox_.Take(Activation(1, 0), Soon());
  absl::StatusOr<Received> second = inbox_.Take(Activation(1, 1), Soon());
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->tensor.f32()[5], 10);
  EXPECT_EQ(second->tensor.f32()[0], 11);
  EXPECT_EQ(first->tensor.data, first->slot.data());
}

TEST_F(InboxTest, KeepsSmallTensorsWithoutAPool) {
  absl::StatusOr<Received> norm = inbox_.Prepare(Norm(3), ElementType::kFloat64, {1});
  ASSERT_TRUE(norm.ok()) << norm.status();
  *norm->tensor.f64() = 2.5;
  ASSERT_TRUE(inbox_.Put(*std::move(norm)).ok());
  absl::StatusOr<Received> taken = inbox_.Take(Norm(3), Soon());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(*taken->tensor.f64(), 2.5);
  EXPECT_FALSE(taken->slot.valid());
}

TEST_F(InboxTest, WaitsForWhatArrivesLater) {
  std::thread link([this] { EXPECT_TRUE(Arrive(Activation(1, 0), 7).ok()); });
  absl::StatusOr<Received> taken = inbox_.Take(Activation(1, 0), Soon());
  link.join();
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->tensor.f32()[0], 7);
}

TEST_F(InboxTest, TellsAfterEachTakeSoThatTheCreditGoesBack) {
  std::vector<Tag> returned;
  inbox_.OnTaken([&](const Tag& tag) { returned.push_back(tag); });
  ASSERT_TRUE(Arrive(Activation(1, 0), 1).ok());
  EXPECT_TRUE(returned.empty());
  ASSERT_TRUE(inbox_.Take(Activation(1, 0), Soon()).ok());
  EXPECT_THAT(returned, ::testing::ElementsAre(Activation(1, 0)));
}

TEST_F(InboxTest, RefusesWhatThePlanDoesNotExpectAndSaysWhatItDoes) {
  absl::Status status = inbox_.Prepare(Activation(1, 9), ElementType::kFloat32, {2, 3}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("micro-batch 9, from stage 0: not expected"));

  status = inbox_.Prepare(Activation(1, 0), ElementType::kFloat32, {3, 2}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("float32 [3, 2] arrived, expected float32 [2, 3]"));

  status = inbox_.Prepare(Activation(1, 0), ElementType::kInt32, {2, 3}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("int32 [2, 3] arrived, expected float32 [2, 3]"));
  EXPECT_EQ(pool_->free_slots(), kSlots);
}

TEST_F(InboxTest, RefusesATensorBeyondTheCreditsPool) {
  ASSERT_TRUE(Arrive(Activation(1, 0), 1).ok());
  ASSERT_TRUE(Arrive(Activation(1, 1), 1).ok());
  const absl::Status status = Arrive(Activation(1, 2), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("micro-batch 2"));
}

TEST_F(InboxTest, RefusesEndlessSmallTensorsNobodyTakes) {
  for (int step = 1; step <= Inbox::kMaxInlineWaiting; ++step) {
    ASSERT_TRUE(inbox_.Put(*inbox_.Prepare(Norm(step), ElementType::kFloat64, {1})).ok());
  }
  EXPECT_EQ(inbox_.Prepare(Norm(1000), ElementType::kFloat64, {1}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(InboxTest, RefusesATagThatWaitsWasTakenOrBelongsToAStepThatIsOver) {
  ASSERT_TRUE(Arrive(Activation(1, 0), 1).ok());
  EXPECT_EQ(Arrive(Activation(1, 0), 2).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(inbox_.Take(Activation(1, 0), Soon()).ok());
  const absl::Status taken = Arrive(Activation(1, 0), 2);
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()), HasSubstr("was taken before"));

  ASSERT_TRUE(Arrive(Activation(2, 0), 3).ok());
  ASSERT_TRUE(inbox_.Take(Activation(2, 0), Soon()).ok());
  const absl::Status old = Arrive(Activation(1, 5), 2);
  EXPECT_EQ(old.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(old.message()), HasSubstr("step 2 has begun"));
}

TEST_F(InboxTest, PutSeesADuplicateThatWasPreparedTwice) {
  absl::StatusOr<Received> a = inbox_.Prepare(Activation(1, 0), ElementType::kFloat32, {2, 3});
  absl::StatusOr<Received> b = inbox_.Prepare(Activation(1, 0), ElementType::kFloat32, {2, 3});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(inbox_.Put(*std::move(a)).ok());
  EXPECT_EQ(inbox_.Put(*std::move(b)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(pool_->free_slots(), kSlots - 1);
}

TEST_F(InboxTest, TakeGivesUpAtItsDeadlineNamingTheTag) {
  const absl::Status status =
      inbox_.Take(Activation(12, 3), absl::Now() + absl::Milliseconds(20)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      status.message(),
      HasSubstr("activation of step 12, micro-batch 3, from stage 0: has not come after 0.0"));
}

TEST_F(InboxTest, FailWakesTheWaiterDropsWhatWaitsAndKeepsTheFirstCause) {
  ASSERT_TRUE(Arrive(Activation(1, 1), 1).ok());
  absl::Status status;
  std::thread executor([&] { status = inbox_.Take(Activation(1, 0), Soon()).status(); });
  inbox_.Fail(0, absl::UnavailableError("connection reset"));
  executor.join();
  EXPECT_EQ(status, absl::UnavailableError("connection reset"));
  inbox_.Fail(0, absl::InternalError("later"));
  EXPECT_EQ(inbox_.Take(Activation(1, 1), Soon()).status(),
            absl::UnavailableError("connection reset"));
  EXPECT_EQ(Arrive(Activation(1, 2), 1), absl::UnavailableError("connection reset"));
  EXPECT_EQ(pool_->free_slots(), kSlots);
}

TEST_F(InboxTest, FailOfOneStageLeavesTheOthersTensorsAlone) {
  ASSERT_TRUE(Arrive(Activation(1, 0), 1).ok());
  inbox_.Fail(5, absl::UnavailableError("gone"));
  EXPECT_TRUE(inbox_.Take(Activation(1, 0), Soon()).ok());
}

TEST_F(InboxTest, EndLetsWhatArrivedBeTakenAndFailsWhatDidNot) {
  ASSERT_TRUE(Arrive(Activation(1, 0), 1).ok());
  inbox_.End(0);
  EXPECT_TRUE(inbox_.Take(Activation(1, 0), Soon()).ok());
  const absl::Status status = inbox_.Take(Activation(1, 1), Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("stage 0 ended its stream without it"));
}

// The first stage is done once the last activations of an evaluation have arrived here, taken or
// not; then our link back to it breaks.
TEST_F(InboxTest, AStageThatEndedInOrderMayGoBeforeItsTensorsAreTaken) {
  ASSERT_TRUE(Arrive(Activation(1, 0), 1).ok());
  inbox_.End(0);
  inbox_.Fail(0, absl::UnavailableError("the receiver ended the stream"));
  EXPECT_TRUE(inbox_.Take(Activation(1, 0), Soon()).ok());
}

TEST_F(InboxTest, CloseWakesTheWaiterAndFreesEverySlot) {
  ASSERT_TRUE(Arrive(Activation(1, 1), 1).ok());
  absl::Status status;
  std::thread executor([&] { status = inbox_.Take(Activation(1, 0), Soon()).status(); });
  inbox_.Close();
  executor.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Arrive(Activation(1, 2), 1).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(pool_->free_slots(), kSlots);
}

}  // namespace
}  // namespace headrace
