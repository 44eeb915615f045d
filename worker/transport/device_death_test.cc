// A peer on a device that is killed or stopped, at every step of its link and either end: noticed
// within seconds, by name, with nothing left hanging and nothing broken here. NCCL says nothing of
// a lost peer (nor does the fake): the stream does. The peer is a process of its own
// (device_peer.cc), which reaches memory here over CUDA IPC's stand-in.
#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>

#include "absl/synchronization/notification.h"
#include "worker/transport/device_loopback.h"
#include "worker/transport/peer_process.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// As in grpc_death_test.
const bool kGrpcStaysUp = [] {
  grpc_init();
  return setenv("HEADRACE_NCCL", HEADRACE_FAKE_NCCL, 1) == 0;
}();
constexpr absl::Duration kNoticeDeath = absl::Seconds(2);
constexpr absl::Duration kNoticeStop = absl::Seconds(4);

const TestPlan kPlan = {.rows = 256, .host = "host-a"};

std::vector<std::string> Receiver(v1::Transport transport) {
  return {HEADRACE_DEVICE_PEER, "receive", kPlan.host, v1::Transport_Name(transport)};
}

class DeviceDeathTest : public ::testing::TestWithParam<v1::Transport> {
 protected:
  LinkContext Context() {
    LinkContext context = TestContext(0, kPlan);
    context.transport = GetParam();
    context.device = &end_.device();
    return context;
  }
  absl::Status Connect(PeerProcess* receiver) {
    v1::Peer peer;
    peer.set_stage(1);
    peer.set_worker("w1");
    peer.set_address(receiver->ReadLine());
    peer.mutable_host()->set_id(kPlan.host);
    auto links = ConnectLinks(Context(), {peer}, Soon(), [this](int, absl::Status cause) {
      cause_ = std::move(cause);
      lost_.Notify();
    });
    if (!links.ok()) return links.status();
    links_ = *std::move(links);
    return absl::OkStatus();
  }
  absl::Status Send(int mb) {
    return links_->Send(1, MakeDeviceOutgoing(ActivationTag(1, mb), kPlan, &end_, mb), Soon());
  }
  void ExpectLostWithin(absl::Duration limit) {
    const absl::Time began = absl::Now();
    ASSERT_TRUE(lost_.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_LT(absl::Now() - began, limit) << cause_;
    EXPECT_EQ(cause_.code(), absl::StatusCode::kUnavailable) << cause_;
    EXPECT_THAT(std::string(cause_.message()), HasSubstr("link to stage 1 (worker w1, "));
    const absl::Time closing = absl::Now();
    links_->Close();
    EXPECT_LT(absl::Now() - closing, absl::Seconds(1));
    EXPECT_EQ(end_.pool()->free_slots(), kPlan.slots);
    EXPECT_EQ(end_.staged_out()->free_slots(), kPlan.credits + 1);
    EXPECT_EQ(end_.device().streams(), 0);
    EXPECT_EQ(end_.device().imports(), 0);
  }

  DeviceEnd end_{"GPU-0", kPlan};
  absl::Status cause_;
  absl::Notification lost_;
  std::unique_ptr<Links> links_;
};
INSTANTIATE_TEST_SUITE_P(Links, DeviceDeathTest,
                         ::testing::Values(v1::TRANSPORT_CUDA_IPC, v1::TRANSPORT_NCCL),
                         [](const auto& info) { return v1::Transport_Name(info.param); });

TEST_P(DeviceDeathTest, AKilledReceiverIsNoticed) {
  PeerProcess receiver(Receiver(GetParam()));
  ASSERT_TRUE(Connect(&receiver).ok());
  receiver.Signal(SIGKILL);
  ExpectLostWithin(kNoticeDeath);
}
TEST_P(DeviceDeathTest, AReceiverKilledDuringATransferIsNoticed) {
  PeerProcess receiver(Receiver(GetParam()), {"FAKE_NCCL_HANG=ncclRecv", "FAKE_NCCL_AFTER=1"});
  ASSERT_TRUE(Connect(&receiver).ok());
  end_.device().Hold();
  ASSERT_TRUE(Send(0).ok());
  receiver.Signal(SIGKILL);
  ExpectLostWithin(kNoticeDeath);
  end_.device().Release();
}
TEST_P(DeviceDeathTest, AReceiverStoppedDuringATransferIsNoticed) {
  PeerProcess receiver(Receiver(GetParam()), {"FAKE_NCCL_HANG=ncclRecv", "FAKE_NCCL_AFTER=1"});
  ASSERT_TRUE(Connect(&receiver).ok());
  receiver.Signal(SIGSTOP);
  ASSERT_TRUE(Send(0).ok());
  ASSERT_TRUE(Send(1).ok());
  ExpectLostWithin(kNoticeStop);
}
TEST_P(DeviceDeathTest, AReceiverKilledWhileItIsTriedIsNoticed) {
  PeerProcess receiver(Receiver(GetParam()), {"FAKE_NCCL_HANG=ncclCommInitRankConfig"});
  end_.device().Hold();  // the sender's part of a trial of memory does not end
  std::thread killing([&receiver] {
    absl::SleepFor(absl::Milliseconds(200));  // any moment will do
    receiver.Signal(SIGKILL);
  });
  const absl::Time began = absl::Now();
  const absl::Status connected = Connect(&receiver);
  killing.join();
  EXPECT_EQ(connected.code(), absl::StatusCode::kUnavailable) << connected;
  EXPECT_LT(absl::Now() - began, kNoticeDeath);
  EXPECT_EQ(end_.device().streams(), 0);
  EXPECT_EQ(end_.device().imports(), 0);
}

// The receiving end here: what it has stays as it is.
class DeviceSenderDeathTest : public DeviceDeathTest {
 protected:
  DeviceSenderDeathTest() : stage_(&end_, kPlan, GetParam()) {}

  std::vector<std::string> Sender() {
    return {HEADRACE_DEVICE_PEER, "send", kPlan.host, v1::Transport_Name(GetParam()),
            stage_.address()};
  }
  void ExpectTakeFailsWithin(absl::Duration limit, int mb) {
    const absl::Time began = absl::Now();
    const absl::Status status = stage_.inbox().Take(ActivationTag(1, mb), Soon()).status();
    EXPECT_LT(absl::Now() - began, limit);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("stream from stage 0: "));
    stage_.Leave();
    EXPECT_EQ(end_.device().streams(), 0);
  }

  DeviceStage stage_;
};
INSTANTIATE_TEST_SUITE_P(Links, DeviceSenderDeathTest,
                         ::testing::Values(v1::TRANSPORT_CUDA_IPC, v1::TRANSPORT_NCCL),
                         [](const auto& info) { return v1::Transport_Name(info.param); });

TEST_P(DeviceSenderDeathTest, AKilledSenderFailsTheTakeAndLeavesWhatItSent) {
  PeerProcess sender(Sender(), {"FAKE_NCCL_HANG=ncclSend", "FAKE_NCCL_AFTER=2"});
  ASSERT_EQ(sender.ReadLine(), "sent");
  const absl::StatusOr<Received> got = stage_.inbox().Take(ActivationTag(1, 0), Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  sender.Signal(SIGKILL);
  // It has sent one more, but for NCCL, where it hangs in the middle of it.
  ExpectTakeFailsWithin(kNoticeDeath, GetParam() == v1::TRANSPORT_NCCL ? 1 : 2);
  EXPECT_TRUE(HoldsPattern(got->tensor, 5));
}
TEST_P(DeviceSenderDeathTest, AStoppedSenderFailsTheTake) {
  PeerProcess sender(Sender());
  ASSERT_EQ(sender.ReadLine(), "sent");
  ASSERT_TRUE(stage_.inbox().Take(ActivationTag(1, 0), Soon()).ok());
  sender.Signal(SIGSTOP);
  ExpectTakeFailsWithin(kNoticeStop, 2);
}
TEST_P(DeviceSenderDeathTest, ASenderKilledWhileItIsTriedIsForgotten) {
  end_.device().Hold();  // the receiver's part of a trial of memory does not end
  {
    PeerProcess sender(Sender(), {"FAKE_NCCL_HANG=ncclCommInitRankConfig"});
    absl::SleepFor(absl::Milliseconds(200));  // any moment will do
  }
  ExpectTakeFailsWithin(kNoticeDeath, 0);
}

}  // namespace
}  // namespace headrace
