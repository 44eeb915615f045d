// What a receiver that offered its memory takes from a sender, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "worker/transport/loopback.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

const TestPlan kPlan = {.rows = 300, .host = "host-a"};

// A stream of one's own that has attached, or says so.
class ShmRefusalTest : public ::testing::Test {
 protected:
  ShmRefusalTest() : stage_("127.0.0.1:0", kPlan, absl::Seconds(5)), sender_(stage_.address()) {
    v1::TensorHeader hello = TestHeader(v1::MESSAGE_KIND_HELLO);
    hello.set_host(kPlan.host);
    EXPECT_TRUE(sender_.Write(EncodeFrame(hello)));
    EXPECT_TRUE(sender_.ReadAck(&offer_));
    EXPECT_TRUE(offer_.has_shared_memory());
    EXPECT_EQ(offer_.activation_credits(), 0);
  }

  void Attach(const std::string& not_attached = "") {
    const v1::SharedMemory& memory = offer_.shared_memory();
    auto region =
        SharedRegion::Attach({memory.process(), memory.file(), memory.bytes(), memory.nonce()});
    ASSERT_TRUE(region.ok()) << region.status();
    region_ = *std::move(region);
    v1::TensorHeader attached = TestHeader(v1::MESSAGE_KIND_ATTACHED);
    attached.set_not_attached(not_attached);
    ASSERT_TRUE(sender_.Write(EncodeFrame(attached)));
    ASSERT_TRUE(sender_.ReadAck(&grant_));
  }

  // The header of a whole tensor in `slot`, which is filled.
  v1::TensorHeader InPlace(int64_t slot) {
    const std::string payload(static_cast<size_t>(kPlan.bytes()), 'w');
    if (char* const to = region_->At(slot, kPlan.bytes())) payload.copy(to, payload.size());
    v1::TensorHeader header = WholeHeader(kPlan, payload);
    header.set_slot(slot);
    return header;
  }

  void ExpectRefused(absl::StatusCode code, const std::string& text) {
    const absl::Status said = sender_.Finish();
    EXPECT_EQ(said.code(), code) << said;
    EXPECT_THAT(std::string(said.message()), HasSubstr(text));
    EXPECT_EQ(stage_.inbox().Take(ActivationTag(9, 7), Soon()).status().code(), code);
    EXPECT_EQ(stage_.pool()->free_slots(), kPlan.slots) << "a refused tensor keeps no memory";
    EXPECT_EQ(stage_.memory().ties()->free_slots(), 1);
  }

  LoopbackStage stage_;
  RawSender sender_;
  v1::StreamTensorsResponse offer_, grant_;
  std::unique_ptr<SharedRegion> region_;
};

TEST_F(ShmRefusalTest, WhatIsRightIsTaken) {
  Attach();
  ASSERT_EQ(grant_.activation_slots_size(), kPlan.credits);
  ASSERT_EQ(grant_.gradient_slots_size(), kPlan.credits);
  ASSERT_EQ(grant_.tie_slots_size(), 1);
  ASSERT_TRUE(sender_.Write(EncodeFrame(InPlace(grant_.activation_slots(1)))));
  const absl::StatusOr<Received> got = stage_.inbox().Take(ActivationTag(1, 0), Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(static_cast<char*>(got->tensor.data)[kPlan.bytes() - 1], 'w');
}

struct BadSlot {
  const char* name;
  std::function<void(v1::TensorHeader*, const v1::StreamTensorsResponse&)> change;
  absl::StatusCode code;
  const char* text;
};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
const BadSlot kBadSlots[] = {
    {"Nowhere", [](auto* h, const auto&) { h->set_slot(int64_t{1} << 40); }, kInvalid,
     "in shared memory at 1099511627776, where no slot was granted for it"},
    {"Negative", [](auto* h, const auto&) { h->set_slot(-4096); }, kInvalid, "no slot was granted"},
    {"Between", [](auto* h, const auto&) { h->set_slot(h->slot() + 64); }, kInvalid,
     "no slot was granted"},
    {"AnotherClass", [](auto* h, const auto& g) { h->set_slot(g.gradient_slots(0)); }, kInvalid,
     "no slot was granted"},
    {"KindWithoutSlots", [](auto* h, const auto&) { h->set_kind(v1::MESSAGE_KIND_DECISION); },
     kInvalid, "no slot was granted"},
    {"TooLong", [](auto* h, const auto&) { h->set_length(h->length() + 1); }, kInvalid,
     "length 307201, expected 307200"},
    {"TooShort", [](auto* h, const auto&) { h->set_length(0); }, kInvalid,
     "length 0, expected 307200"},
    {"OtherTotal", [](auto* h, const auto&) { h->set_total_bytes(1); }, kInvalid,
     "total_bytes 1, expected 307200"},
    {"Offset", [](auto* h, const auto&) { h->set_offset(4); }, kInvalid, "offset 4, expected 0"},
    {"OtherShape", [](auto* h, const auto&) { h->set_shape(0, 1 << 30); }, kInvalid,
     "arrived, expected float32 [300, 256]"},
    {"OtherBytes", [](auto* h, const auto&) { h->set_crc32c(h->crc32c() ^ 1); },
     absl::StatusCode::kDataLoss, "have checksum"},
    {"OtherGeneration", [](auto* h, const auto&) { h->set_generation(2); },
     absl::StatusCode::kFailedPrecondition, "generation 2, expected job j1 generation 3"},
    {"AsAFrame",
     [](auto* h, const auto&) {
       h->clear_slot();
       h->set_length(0);
     },
     kInvalid, "came in a frame, expected in shared memory"},
};

class BadSlotTest : public ShmRefusalTest, public ::testing::WithParamInterface<BadSlot> {};
INSTANTIATE_TEST_SUITE_P(ShmLink, BadSlotTest, ::testing::ValuesIn(kBadSlots),
                         [](const auto& info) { return info.param.name; });

TEST_P(BadSlotTest, IsRefused) {
  Attach();
  v1::TensorHeader header = InPlace(grant_.activation_slots(0));
  GetParam().change(&header, grant_);
  ASSERT_TRUE(sender_.Write(EncodeFrame(header)));
  ExpectRefused(GetParam().code, GetParam().text);
}

TEST_F(ShmRefusalTest, ASlotServesOneTensor) {
  Attach();
  v1::TensorHeader header = InPlace(grant_.activation_slots(0));
  ASSERT_TRUE(sender_.Write(EncodeFrame(header)));
  header.set_micro_batch(1);
  ASSERT_TRUE(sender_.Write(EncodeFrame(header)));
  ExpectRefused(kInvalid, "no slot was granted");
}

TEST_F(ShmRefusalTest, ASlotAndAPayloadAreRefused) {
  Attach();
  ASSERT_TRUE(sender_.Write(InPlace(grant_.activation_slots(0)), "xyz"));
  ExpectRefused(kInvalid, "a slot and a payload of 3 bytes");
}

TEST_F(ShmRefusalTest, WhoCouldNotAttachSendsFrames) {
  Attach("no such process");
  EXPECT_EQ(grant_.activation_credits(), kPlan.credits);
  EXPECT_EQ(grant_.activation_slots_size(), 0);
  EXPECT_EQ(stage_.pool()->free_slots(), kPlan.slots);
  ASSERT_TRUE(sender_.Write(EncodeFrame(InPlace(SharedRegion::kPage))));
  ExpectRefused(kInvalid, "no slot was granted");
}

TEST_F(ShmRefusalTest, AnythingButAnAnswerToTheOfferIsRefused) {
  ASSERT_TRUE(sender_.Write(EncodeFrame(TestHeader(v1::MESSAGE_KIND_END))));
  ExpectRefused(kInvalid, "answer to an offer of memory of kind end, expected attached");
}

TEST(ShmRefusal, WhoNeverAnswersTheOfferIsCutOff) {
  LoopbackStage stage("127.0.0.1:0", kPlan, absl::Milliseconds(300));
  RawSender sender(stage.address());
  v1::TensorHeader hello = TestHeader(v1::MESSAGE_KIND_HELLO);
  hello.set_host(kPlan.host);
  ASSERT_TRUE(sender.Write(EncodeFrame(hello)));
  EXPECT_FALSE(sender.Finish().ok());
  EXPECT_FALSE(stage.inbox().Take(ActivationTag(1, 0), Soon()).ok());
}

}  // namespace
}  // namespace headrace
