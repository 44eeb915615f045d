// A peer that is killed or stopped, at either end of a link: noticed within seconds, by name, with
// nothing left hanging. The peer is a process of its own (link_peer.cc).
#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/synchronization/notification.h"
#include "worker/transport/loopback.h"
#include "worker/transport/peer_process.h"

namespace headrace {
namespace {

// A worker's server keeps gRPC up. Here the last link's end would shut it down, and that waits for
// gRPC's own poller, up to ten seconds.
const bool kGrpcStaysUp = [] {
  grpc_init();
  return true;
}();

using ::testing::HasSubstr;

// kill -9 resets the connection; a stopped peer is only missed by keepalive: 1 s, and 1 s for its
// answer. The rest is for a busy machine.
constexpr absl::Duration kNoticeDeath = absl::Seconds(2);
constexpr absl::Duration kNoticeStop = absl::Seconds(4);

std::vector<std::string> Command(const char* role, const std::string& address,
                                 const TestPlan& plan) {
  return {HEADRACE_LINK_PEER, role, address, absl::StrCat(plan.rows), plan.host};
}

using DeathTest = ::testing::TestWithParam<Over>;

constexpr auto kOverAll = [] {
  return ::testing::Values(Over::kTcp, Over::kUnixSocket, Over::kSharedMemory);
};

// Tensors of 64 MiB: more than sockets hold. Shared ones need not be so large, and take real
// memory.
TestPlan LargePlan(Over over) {
  if (over == Over::kSharedMemory) return {.rows = 1 << 13, .host = HostFor(over)};
  return {.rows = 1 << 16};
}

// The sending end here, the receiver a process.
class ReceiverDeathTest : public DeathTest {
 protected:
  ReceiverDeathTest()
      : plan_(LargePlan(GetParam())),
        memory_(plan_),
        receiver_(Command("receive", Listen(GetParam()), plan_)) {
    for (int mb : {0, 1}) {
      ready_.push_back(MakeOutgoing(ActivationTag(1, mb), plan_, memory_.pool(), 1));
    }
    v1::Peer peer;
    peer.set_stage(1);
    peer.set_worker("w1");
    peer.set_address(receiver_.ReadLine());
    peer.mutable_host()->set_id(plan_.host);
    absl::StatusOr<std::unique_ptr<Links>> outbox =
        ConnectLinks(TestContext(0, plan_), {peer}, Soon(), [this](int stage, absl::Status cause) {
          EXPECT_EQ(stage, 1);
          cause_ = std::move(cause);
          lost_.Notify();
        });
    if (!outbox.ok()) ADD_FAILURE() << outbox.status();
    outbox_ = *std::move(outbox);
    EXPECT_EQ(outbox_->Describe()[0].transport(),
              GetParam() == Over::kSharedMemory ? "shm" : "grpc");
  }

  absl::Status Send(int micro_batch) {
    return outbox_->Send(1, std::move(ready_[static_cast<size_t>(micro_batch)]), Soon());
  }

  void ExpectLostWithin(absl::Duration limit) {
    const absl::Time began = absl::Now();
    ASSERT_TRUE(lost_.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_LT(absl::Now() - began, limit) << cause_;
    EXPECT_EQ(cause_.code(), absl::StatusCode::kUnavailable) << cause_;
    EXPECT_THAT(std::string(cause_.message()), HasSubstr("link to stage 1 (worker w1, "));
    EXPECT_EQ(outbox_->Send(1, MakeDecision(DecisionTag(1), 1), Soon()).code(),
              absl::StatusCode::kUnavailable);
    ExpectClosesAtOnce();
  }

  void ExpectClosesAtOnce() {
    ready_.clear();
    const absl::Time began = absl::Now();
    outbox_->Close();
    EXPECT_LT(absl::Now() - began, absl::Seconds(1));
    EXPECT_EQ(memory_.pool()->free_slots(), plan_.slots);
  }

  const TestPlan plan_;
  TestMemory memory_;
  std::vector<Outgoing> ready_;  // filled before the clock runs
  PeerProcess receiver_;
  absl::Status cause_;
  absl::Notification lost_;
  std::unique_ptr<Links> outbox_;
};
INSTANTIATE_TEST_SUITE_P(Links, ReceiverDeathTest, kOverAll(),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(ReceiverDeathTest, AKilledReceiverIsNoticed) {
  receiver_.Signal(SIGKILL);
  ExpectLostWithin(kNoticeDeath);
}

TEST_P(ReceiverDeathTest, AReceiverKilledInTheMiddleOfATensorIsNoticed) {
  ASSERT_TRUE(Send(0).ok());
  receiver_.Signal(SIGKILL);
  ExpectLostWithin(kNoticeDeath);
}

TEST_P(ReceiverDeathTest, AStoppedReceiverIsNoticed) {
  receiver_.Signal(SIGSTOP);
  ExpectLostWithin(kNoticeStop);
}

// The socket is full of our bytes, so a ping has no way out.
TEST_P(ReceiverDeathTest, AReceiverStoppedInTheMiddleOfATensorIsNoticed) {
  receiver_.Signal(SIGSTOP);
  ASSERT_TRUE(Send(0).ok());
  ASSERT_TRUE(Send(1).ok());
  ExpectLostWithin(kNoticeStop);
}

TEST_P(ReceiverDeathTest, CloseDoesNotWaitForAStoppedReceiver) {
  receiver_.Signal(SIGSTOP);
  ASSERT_TRUE(Send(0).ok());
  ASSERT_TRUE(Send(1).ok());
  ExpectClosesAtOnce();
}

TEST_P(ReceiverDeathTest, FinishGivesUpOnAStoppedReceiver) {
  receiver_.Signal(SIGSTOP);
  ASSERT_TRUE(Send(0).ok());
  const absl::Status status = outbox_->Finish(absl::Now() + absl::Milliseconds(100));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  ExpectClosesAtOnce();
}

// The receiving end here, the sender a process.
class SenderDeathTest : public DeathTest {
 protected:
  SenderDeathTest()
      : plan_{.host = HostFor(GetParam())},
        stage_(Listen(GetParam()), plan_),
        sender_(Command("send", stage_.address(), plan_)) {
    EXPECT_EQ(sender_.ReadLine(), "sent");
    const absl::StatusOr<Received> got = stage_.inbox().Take(ActivationTag(1, 0), Soon());
    EXPECT_TRUE(got.ok()) << got.status();
  }

  void ExpectLostWithin(absl::Duration limit) {
    const absl::Time began = absl::Now();
    const absl::Status status = stage_.inbox().Take(ActivationTag(1, 1), Soon()).status();
    EXPECT_LT(absl::Now() - began, limit);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("stream from stage 0: the stream broke"));
  }

  const TestPlan plan_;
  LoopbackStage stage_;
  PeerProcess sender_;
};
INSTANTIATE_TEST_SUITE_P(Links, SenderDeathTest, kOverAll(),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(SenderDeathTest, AKilledSenderFailsTheTake) {
  sender_.Signal(SIGKILL);
  ExpectLostWithin(kNoticeDeath);
}

TEST_P(SenderDeathTest, AStoppedSenderFailsTheTake) {
  sender_.Signal(SIGSTOP);
  ExpectLostWithin(kNoticeStop);
}

}  // namespace
}  // namespace headrace
