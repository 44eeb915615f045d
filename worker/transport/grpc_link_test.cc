// Two stages in one process over real gRPC: what arrives, what waits, what ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "worker/transport/loopback.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// The sending end, stage 0.
class Sender {
 public:
  explicit Sender(const LoopbackStage& to, const TestPlan& plan = {}) : plan_(plan), memory_(plan) {
    absl::StatusOr<std::unique_ptr<Links>> outbox =
        ConnectLinks(TestContext(0, plan), {to.peer()}, Soon(), [this](int stage, absl::Status s) {
          EXPECT_EQ(stage, 1);
          cause_ = std::move(s);
          lost_.Notify();
        });
    if (!outbox.ok()) ADD_FAILURE() << outbox.status();
    outbox_ = *std::move(outbox);
  }

  absl::Status Send(const Tag& tag, int seed, absl::Time deadline = Soon()) {
    return outbox_->Send(1, MakeOutgoing(tag, plan_, memory_.pool(), seed), deadline);
  }
  Outbox& outbox() { return *outbox_; }
  Pool* pool() { return memory_.pool(); }
  bool AwaitLost() { return lost_.WaitForNotificationWithTimeout(absl::Seconds(20)); }
  bool lost() const { return lost_.HasBeenNotified(); }
  const absl::Status& cause() const { return cause_; }

 private:
  const TestPlan plan_;
  TestMemory memory_;
  absl::Status cause_;
  absl::Notification lost_;
  std::unique_ptr<Outbox> outbox_;
};

class LinkTest : public ::testing::TestWithParam<Over> {};
INSTANTIATE_TEST_SUITE_P(Links, LinkTest,
                         ::testing::Values(Over::kTcp, Over::kUnixSocket, Over::kSharedMemory),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(LinkTest, BringsEveryTensorWholeWhateverTheOrderItIsTakenIn) {
  const TestPlan plan{.rows = 2500, .host = HostFor(GetParam())};  // 2.4 chunks
  LoopbackStage receiver(Listen(GetParam()), plan);
  Sender sender(receiver, plan);
  for (int step = 1; step <= 3; ++step) {
    for (int mb = 0; mb < 8; mb += 2) {
      ASSERT_TRUE(sender.Send(ActivationTag(step, mb), 10 * step + mb).ok());
      ASSERT_TRUE(sender.Send(ActivationTag(step, mb + 1), 10 * step + mb + 1).ok());
      for (int m : {mb + 1, mb}) {
        absl::StatusOr<Received> got = receiver.inbox().Take(ActivationTag(step, m), Soon());
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_TRUE(HoldsPattern(got->tensor, 10 * step + m)) << step << " " << m;
      }
    }
    ASSERT_TRUE(sender.outbox().Send(1, MakeDecision(DecisionTag(step), step + 0.5), Soon()).ok());
    absl::StatusOr<Received> decision = receiver.inbox().Take(DecisionTag(step), Soon());
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->tensor.f64()[2], step + 0.5);
  }
  EXPECT_TRUE(sender.outbox().Finish(Soon()).ok());
  sender.outbox().Close();
  EXPECT_FALSE(sender.lost());
  EXPECT_EQ(sender.pool()->free_slots(), plan.slots);
  EXPECT_EQ(receiver.pool()->free_slots(), plan.slots);
}

TEST(GrpcLink, SendWaitsForACreditUntilItsDeadlineAndTakeGivesOneBack) {
  LoopbackStage receiver;
  Sender sender(receiver);
  ASSERT_TRUE(sender.Send(ActivationTag(1, 0), 0).ok());
  ASSERT_TRUE(sender.Send(ActivationTag(1, 1), 1).ok());
  const absl::Status late =
      sender.Send(ActivationTag(1, 2), 2, absl::Now() + absl::Milliseconds(120));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()),
              AllOf(HasSubstr("link to stage 1 (worker w1, 127.0.0.1:"),
                    HasSubstr("activation of step 1, micro-batch 2, from stage 0: no credit"),
                    ContainsRegex("after [0-9.]+ s")));
  EXPECT_FALSE(sender.lost()) << "a late send does not break the link";
  ASSERT_TRUE(receiver.inbox().Take(ActivationTag(1, 0), Soon()).ok());
  EXPECT_TRUE(sender.Send(ActivationTag(1, 2), 2).ok());
}

TEST(GrpcLink, ClassesOfCreditsAreApartAndControlNeedsNone) {
  LoopbackStage receiver;
  Sender sender(receiver);
  ASSERT_TRUE(sender.Send(ActivationTag(1, 0), 0).ok());
  ASSERT_TRUE(sender.Send(ActivationTag(1, 1), 1).ok());
  Tag gradient = ActivationTag(1, 0);
  gradient.kind = v1::MESSAGE_KIND_GRADIENT;
  EXPECT_TRUE(sender.Send(gradient, 2, absl::Now()).ok());
  EXPECT_TRUE(sender.outbox().Send(1, MakeDecision(DecisionTag(1), 1), absl::Now()).ok());
  EXPECT_TRUE(receiver.inbox().Take(DecisionTag(1), Soon()).ok());
  EXPECT_TRUE(receiver.inbox().Take(gradient, Soon()).ok());
}

TEST(GrpcLink, FinishMeansTheReceiverHasEverythingAndKnowsThatNothingFollows) {
  LoopbackStage receiver;
  Sender sender(receiver);
  ASSERT_TRUE(sender.Send(ActivationTag(1, 0), 4).ok());
  ASSERT_TRUE(sender.outbox().Finish(Soon()).ok());
  EXPECT_EQ(sender.Send(ActivationTag(1, 1), 5).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(receiver.inbox().Take(ActivationTag(1, 0), absl::Now()).ok());
  const absl::Status missing = receiver.inbox().Take(ActivationTag(1, 1), Soon()).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("stage 0 ended its stream without it"));
}

TEST(GrpcLink, AStreamThatEndsWithoutEndIsALostPeer) {
  LoopbackStage receiver;
  Sender sender(receiver);
  ASSERT_TRUE(sender.Send(ActivationTag(1, 0), 4).ok());
  sender.outbox().Close();
  const absl::Status status = receiver.inbox().Take(ActivationTag(1, 1), Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("stream from stage 0: the stream broke before its END"));
  EXPECT_FALSE(sender.lost()) << "our own Close is no loss";
}

TEST(GrpcLink, CloseWakesASendThatWaitsAndFreesEverySlotAtOnce) {
  const TestPlan plan{.rows = 1 << 15};  // 32 MiB
  LoopbackStage receiver("127.0.0.1:0", plan);
  Sender sender(receiver, plan);
  ASSERT_TRUE(sender.Send(ActivationTag(1, 0), 0).ok());
  ASSERT_TRUE(sender.Send(ActivationTag(1, 1), 1).ok());
  absl::Status status;
  std::thread executor([&] { status = sender.Send(ActivationTag(1, 2), 2); });
  const absl::Time began = absl::Now();
  sender.outbox().Close();
  executor.join();
  EXPECT_LT(absl::Now() - began, absl::Seconds(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(sender.pool()->free_slots(), plan.slots);
  sender.outbox().Close();
  EXPECT_EQ(sender.outbox().Finish(Soon()).code(), absl::StatusCode::kCancelled);
}

TEST(GrpcLink, AReceiverThatLeavesIsToldToTheSender) {
  LoopbackStage receiver;
  Sender sender(receiver);
  receiver.Leave();
  ASSERT_TRUE(sender.AwaitLost());
  EXPECT_EQ(sender.cause().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(sender.cause().message()),
              AllOf(HasSubstr("link to stage 1 (worker w1"), HasSubstr("ended the stream")));
  const absl::Status send = sender.Send(ActivationTag(1, 0), 0);
  EXPECT_EQ(send.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(send.message(), sender.cause().message());
  EXPECT_EQ(sender.outbox().Finish(Soon()).code(), absl::StatusCode::kUnavailable);
}

TEST(GrpcLink, SendToAStageWithoutALinkIsRefused) {
  LoopbackStage receiver;
  Sender sender(receiver);
  const absl::Status status = sender.outbox().Send(5, MakeDecision(DecisionTag(1), 1), Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no link to stage 5 for decision of step 1"));
}

absl::Status ConnectTo(const v1::Peer& peer, const LinkContext& context, absl::Duration timeout,
                       Cancellation* cancellation = nullptr) {
  return ConnectLinks(
             context, {peer}, absl::Now() + timeout,
             [](int, absl::Status) { ADD_FAILURE() << "a link that never opened cannot be lost"; },
             cancellation)
      .status();
}

TEST(GrpcLink, ConnectingToNobodyNamesWorkerStageAndAddress) {
  v1::Peer peer;
  peer.set_stage(1);
  peer.set_worker("w1");
  peer.set_address("127.0.0.1:1");
  const absl::Status status = ConnectTo(peer, TestContext(0), absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("link to stage 1 (worker w1, 127.0.0.1:1)"),
                    HasSubstr("Connection refused")));
}

// Listens and never says a word. A full one no longer takes connections either.
class SilentPort {
 public:
  explicit SilentPort(int backlog) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address_);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address_), length), 0);
    EXPECT_EQ(listen(fd_, backlog), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address_), &length), 0);
  }
  ~SilentPort() {
    close(fd_);
    for (const int fd : callers_) close(fd);
  }

  // Connects until that takes longer than it ever does here.
  void Fill() {
    pollfd wait = {};
    do {
      wait = {
          .fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), .events = POLLOUT, .revents = 0};
      callers_.push_back(wait.fd);
      connect(wait.fd, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_));
    } while (callers_.size() < 100 && poll(&wait, 1, 300) == 1);
    ASSERT_LT(callers_.size(), 100u);
  }
  v1::Peer peer() const {
    v1::Peer peer;
    peer.set_stage(1);
    peer.set_worker("w1");
    peer.set_address(absl::StrCat("127.0.0.1:", ntohs(address_.sin_port)));
    return peer;
  }

 private:
  const int fd_;
  sockaddr_in address_ = {};
  std::vector<int> callers_;
};

TEST(GrpcLink, ConnectingToASilentPortEndsAtTheDeadline) {
  const SilentPort port(8);
  const absl::Time began = absl::Now();
  const absl::Status status = ConnectTo(port.peer(), TestContext(0), absl::Milliseconds(200));
  EXPECT_LT(absl::Now() - began, absl::Seconds(3));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), ContainsRegex("no answer to HELLO after [0-9.]+ s"));
}

// A stage that was stopped while it connected kept its worker busy until the deadline.
TEST(GrpcLink, ConnectingEndsWhenItIsCancelled) {
  for (const bool full : {false, true}) {
    SilentPort port(full ? 0 : 8);
    if (full) port.Fill();
    Cancellation cancellation;
    absl::Status status;
    std::thread connecting(
        [&] { status = ConnectTo(port.peer(), TestContext(0), absl::Seconds(60), &cancellation); });
    // Before, while or after it dials: it must end in any case.
    cancellation.Pause(absl::Milliseconds(50));
    const absl::Time began = absl::Now();
    cancellation.Cancel();
    connecting.join();
    // Keepalive would end it too, after 2 s.
    EXPECT_LT(absl::Now() - began, absl::Milliseconds(1500)) << full;
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << full << status;
  }
}

TEST(GrpcLink, OnceOpenALinkIsNotCancelledByWhatCancelsConnecting) {
  const TestPlan plan;
  LoopbackStage receiver;
  TestMemory memory(plan);
  Cancellation cancellation;
  absl::StatusOr<std::unique_ptr<Links>> outbox = ConnectLinks(
      TestContext(0), {receiver.peer()}, Soon(),
      [](int, absl::Status cause) { ADD_FAILURE() << cause; }, &cancellation);
  ASSERT_TRUE(outbox.ok()) << outbox.status();
  cancellation.Cancel();
  ASSERT_TRUE(
      (*outbox)->Send(1, MakeOutgoing(ActivationTag(1, 0), plan, memory.pool(), 0), Soon()).ok());
  EXPECT_TRUE((*outbox)->Finish(Soon()).ok());
}

TEST(GrpcLink, ConnectingForAnotherGenerationIsRefusedByName) {
  LoopbackStage receiver;
  LinkContext context = TestContext(0);
  context.generation = 2;
  const absl::Status status = ConnectTo(receiver.peer(), context, absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("hello for job j1 generation 2, but here is job j1 generation 3"));
}

TEST(GrpcLink, ConnectingAfterTheStageHasLeftIsRefused) {
  LoopbackStage receiver;
  receiver.Leave();
  const absl::Status status = ConnectTo(receiver.peer(), TestContext(0), absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("but here is no job"));
}

}  // namespace
}  // namespace headrace
