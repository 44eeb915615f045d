// Two ends of a communicator in one process, on a fake NCCL (fake_nccl.cc) and a fake device; then
// what happens at each step when the other end is not there, refuses, hangs or lies.
#include "worker/transport/nccl_edge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <memory>

#include "absl/time/clock.h"
#include "worker/transport/fake_link_device.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

LinkPatience Soon() { return {.deadline = absl::Now() + absl::Seconds(20)}; }
LinkPatience Briefly() { return {.deadline = absl::Now() + absl::Milliseconds(200)}; }

// One end: a device, a stream and an edge of it.
struct End {
  explicit End(const char* uuid) : device(uuid, 1 << 16) { copies = *DeviceCopies::Open(&device); }
  void Make(const NcclApi* api, NcclEdge::Role role) {
    edge = std::make_unique<NcclEdge>(api, copies.get(), role);
  }

  FakeLinkDevice device;
  std::unique_ptr<DeviceCopies> copies;
  std::unique_ptr<NcclEdge> edge;
};

class NcclEdgeTest : public ::testing::Test {
 protected:
  NcclEdgeTest() : api_(*LoadNccl(std::string(HEADRACE_FAKE_NCCL))) { NewGeneration(); }
  ~NcclEdgeTest() override {
    for (const char* name : {"VERSION", "FAIL", "LATE", "HANG", "CORRUPT"}) {
      unsetenv(absl::StrCat("FAKE_NCCL_", name).c_str());
    }
  }

  static void Set(const char* name, const char* value) {
    setenv(absl::StrCat("FAKE_NCCL_", name).c_str(), value, 1);
  }
  void NewGeneration() {
    sender_.Make(&api_, NcclEdge::Role::kSender);
    receiver_.Make(&api_, NcclEdge::Role::kReceiver);
    id_ = *NewNcclId(api_);
  }
  // What the two ends' Join says: sender, receiver.
  std::pair<absl::Status, absl::Status> Join(const LinkPatience& patience) {
    auto sender = std::async([&] { return sender_.edge->Join(id_, patience); });
    const absl::Status receiver = receiver_.edge->Join(id_, patience);
    return {sender.get(), receiver};
  }
  void Joined() {
    const auto [sender, receiver] = Join(Soon());
    ASSERT_TRUE(sender.ok()) << sender;
    ASSERT_TRUE(receiver.ok()) << receiver;
  }
  // Moves `bytes` of a pattern of `seed` across.
  void Move(int64_t bytes, char seed) {
    char* const from = sender_.device.memory();
    for (int64_t i = 0; i < bytes; ++i) from[i] = static_cast<char>(seed + i % 97);
    auto sent = std::async([&] { return sender_.edge->Send(from, bytes, -1, Soon()); });
    const absl::Status received = receiver_.edge->Receive(receiver_.device.memory(), bytes, Soon());
    ASSERT_TRUE(received.ok()) << received;
    ASSERT_TRUE(sent.get().ok());
    EXPECT_EQ(std::string(receiver_.device.memory(), bytes), std::string(from, bytes));
  }

  const NcclApi api_;
  End sender_{"GPU-0"}, receiver_{"GPU-1"};
  std::string id_;
};

TEST_F(NcclEdgeTest, MovesTensorsOnceBothHaveJoinedAndTriedEachOther) {
  EXPECT_FALSE(sender_.edge->ready());
  Joined();
  EXPECT_TRUE(sender_.edge->ready() && receiver_.edge->ready());
  for (char seed = 1; seed <= 5; ++seed) Move(1 + seed * 1009, seed);
}

TEST_F(NcclEdgeTest, EachGenerationHasACommunicatorOfItsOwn) {
  Joined();
  Move(100, 1);
  const std::string first = id_;
  NewGeneration();
  EXPECT_NE(id_, first);
  Joined();
  Move(100, 2);
}

TEST_F(NcclEdgeTest, IsNotReadyBeforeItHasJoinedNorAfterAnError) {
  EXPECT_EQ(sender_.edge->Send(sender_.device.memory(), 8, -1, Soon()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(receiver_.edge->Receive(receiver_.device.memory(), 8, Soon()).code(),
            absl::StatusCode::kFailedPrecondition);
  Joined();
  Set("FAIL", "ncclSend");
  EXPECT_EQ(sender_.edge->Send(sender_.device.memory(), 8, -1, Soon()).code(),
            absl::StatusCode::kInternal);
  unsetenv("FAKE_NCCL_FAIL");
  EXPECT_EQ(sender_.edge->Send(sender_.device.memory(), 8, -1, Soon()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sender_.edge->Join(id_, Soon()).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(NcclEdgeTest, APeerThatNeverJoinsIsWaitedForUntilTheDeadline) {
  const absl::Status joined = sender_.edge->Join(id_, Briefly());
  EXPECT_EQ(joined.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(joined.message()),
              ::testing::MatchesRegex("ncclCommInitRankConfig has not ended after 0\\.[2-9] s"));
}

TEST_F(NcclEdgeTest, TheEndOfTheStreamEndsEachStep) {
  std::atomic<bool> ended = false;
  LinkPatience patience = Soon();
  patience.over = [&] {
    return ended ? absl::UnavailableError("the stream broke") : absl::OkStatus();
  };
  // While it joins.
  auto joining = std::async([&] { return sender_.edge->Join(id_, patience); });
  ended = true;
  EXPECT_EQ(joining.get().message(), "the stream broke");
  // While the peer does not send, and while it does not receive.
  NewGeneration();
  ended = false;
  Joined();
  auto receiving =
      std::async([&] { return receiver_.edge->Receive(receiver_.device.memory(), 64, patience); });
  ended = true;
  EXPECT_EQ(receiving.get().message(), "the stream broke");
  EXPECT_FALSE(receiver_.edge->ready());
  ended = false;
  Set("HANG", "ncclSend");
  auto sending =
      std::async([&] { return sender_.edge->Send(sender_.device.memory(), 64, -1, patience); });
  ended = true;
  EXPECT_EQ(sending.get().message(), "the stream broke");
}

struct Wrong {
  const char* name;
  const char* setting;
  const char* value;
  const char* what;  // one of the ends says
};
const Wrong kWrong[] = {
    {"InitRefused", "FAIL", "ncclCommInitRankConfig",
     "ncclCommInitRankConfig: invalid usage: the fake was told to"},
    {"InitFails", "LATE", "ncclCommInitRankConfig",
     "ncclCommInitRankConfig: internal error: the fake was told to"},
    {"InitHangs", "HANG", "ncclCommInitRankConfig", "ncclCommInitRankConfig has not ended after"},
    {"TrialRefused", "FAIL", "ncclRecv", "ncclRecv: invalid usage: the fake was told to"},
    {"TrialFails", "LATE", "ncclSend", "ncclSend: internal error: the fake was told to"},
    {"TrialHangs", "HANG", "ncclRecv", "ncclRecv has not ended after"},
    {"TrialIsWrong", "CORRUPT", "1", "the trial came through wrong"},
};
class NcclTrialTest : public NcclEdgeTest, public ::testing::WithParamInterface<Wrong> {};
INSTANTIATE_TEST_SUITE_P(NcclEdge, NcclTrialTest, ::testing::ValuesIn(kWrong),
                         [](const auto& info) { return info.param.name; });

TEST_P(NcclTrialTest, WhatGoesWrongWhileJoiningIsSaid) {
  Set(GetParam().setting, GetParam().value);
  const auto [sender, receiver] = Join({.deadline = absl::Now() + absl::Milliseconds(300)});
  EXPECT_FALSE(sender.ok() && receiver.ok());
  EXPECT_THAT(absl::StrCat(sender.message(), " / ", receiver.message()),
              HasSubstr(GetParam().what));
}

TEST_F(NcclEdgeTest, ALateErrorOfATransferIsSaid) {
  Joined();
  Set("LATE", "ncclRecv");
  EXPECT_EQ(receiver_.edge->Receive(receiver_.device.memory(), 64, Soon()).message(),
            "ncclRecv: internal error: the fake was told to");
}

TEST_F(NcclEdgeTest, ATransferThatDoesNotEndIsAbortedAtItsDeadline) {
  Joined();
  const absl::Status received = receiver_.edge->Receive(receiver_.device.memory(), 64, Briefly());
  EXPECT_EQ(received.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(received.message()), HasSubstr("ncclRecv has not ended after 0."));
}

TEST_F(NcclEdgeTest, AnIdOfAnotherSizeIsRefused) {
  EXPECT_EQ(sender_.edge->Join("short", Soon()).message(), "an id of 5 bytes");
}

TEST_F(NcclEdgeTest, AFailedDeviceIsSaid) {
  Joined();
  sender_.device.Fail("After");
  EXPECT_EQ(sender_.edge->Send(sender_.device.memory(), 8, 0, Soon()).message(),
            "After: fake error");
  receiver_.device.Fail("Mark");
  EXPECT_EQ(receiver_.edge->Receive(receiver_.device.memory(), 8, Soon()).message(),
            "Mark: fake error");
}

TEST(NcclApi, SaysWhyThereIsNone) {
  const auto missing = LoadNccl(std::string("libno_such_nccl.so.2"));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("libno_such_nccl.so.2"));
  setenv("FAKE_NCCL_VERSION", "21303", 1);
  EXPECT_THAT(std::string(LoadNccl(std::string(HEADRACE_FAKE_NCCL)).status().message()),
              HasSubstr(" is of version 2.13.3; expected NCCL 2.14 or later"));
  unsetenv("FAKE_NCCL_VERSION");
  EXPECT_THAT(std::string(LoadNccl(std::string("libm.so.6")).status().message()),
              HasSubstr("libm.so.6 has no ncclGetVersion; expected NCCL 2.14 or later"));
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
}

}  // namespace
}  // namespace headrace
