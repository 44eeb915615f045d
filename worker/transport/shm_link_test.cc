// Links whose tensors go through shared memory: that they do, what happens where they cannot, and
// what a receiver may say wrong about it (a sender: shm_refusal_test). What holds for every link is in grpc_link_test
// and grpc_death_test, which run over shared memory too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <set>
#include <thread>

#include "absl/synchronization/notification.h"
#include "worker/transport/loopback.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

const TestPlan kPlan = {.rows = 300, .host = "host-a"};

Tag TieTag(int64_t step) {
  return {.kind = v1::MESSAGE_KIND_TIED_WEIGHTS, .from_stage = 0, .step = step};
}

absl::StatusOr<std::unique_ptr<Links>> Connect(const v1::Peer& peer, const LinkContext& context) {
  return ConnectLinks(context, {peer}, Soon(), [](int, absl::Status) {});
}

std::unique_ptr<Links> Connected(const LoopbackStage& stage, const LinkContext& context) {
  absl::StatusOr<std::unique_ptr<Links>> links = Connect(stage.peer(), context);
  if (!links.ok()) ADD_FAILURE() << links.status();
  return *std::move(links);
}

TEST(ShmLink, TensorsLieWhereTheReceiverUsesThemInSlotsThatComeBack) {
  LoopbackStage receiver("127.0.0.1:0", kPlan);
  TestMemory memory(kPlan);
  const auto links = Connected(receiver, TestContext(0, kPlan));
  const v1::LinkInfo link = links->Describe()[0];
  EXPECT_EQ(link.transport(), "shm");
  EXPECT_EQ(link.to_stage(), 1);
  EXPECT_EQ(link.address(), receiver.address());
  EXPECT_EQ(link.reason(), "both workers are on one host");
  // The receiver has given its slots away before anything comes.
  EXPECT_EQ(receiver.pool()->free_slots(), kPlan.slots - kPlan.credits);
  std::set<const void*> places;
  for (int step = 1; step <= 4; ++step) {
    for (int mb = 0; mb < 8; ++mb) {
      const int seed = 10 * step + mb;
      ASSERT_TRUE(
          links->Send(1, MakeOutgoing(ActivationTag(step, mb), kPlan, memory.pool(), seed), Soon())
              .ok());
      const absl::StatusOr<Received> got = receiver.inbox().Take(ActivationTag(step, mb), Soon());
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_TRUE(HoldsPattern(got->tensor, seed));
      EXPECT_EQ(got->slot.pool(), receiver.pool());
      EXPECT_EQ(got->tensor.data, got->slot.data());
      places.insert(got->tensor.data);
    }
  }
  EXPECT_LE(places.size(), static_cast<size_t>(kPlan.slots));
  EXPECT_TRUE(links->Finish(Soon()).ok());
  links->Close();
  EXPECT_EQ(memory.pool()->free_slots(), kPlan.slots);
  EXPECT_EQ(receiver.pool()->free_slots(), kPlan.slots);
  EXPECT_EQ(receiver.memory().gradients()->free_slots(), kPlan.credits + 1);
}

// A tie has one slot, and goes on being read after it was taken.
TEST(ShmLink, ATieWaitsUntilTheLastOneIsNoLongerUsed) {
  LoopbackStage receiver("127.0.0.1:0", kPlan);
  TestMemory memory(kPlan);
  const auto links = Connected(receiver, TestContext(0, kPlan));
  const auto send = [&](int step, absl::Time deadline) {
    return links->Send(1, MakeOutgoing(TieTag(step), kPlan, memory.pool(), step), deadline);
  };
  ASSERT_TRUE(send(1, Soon()).ok());
  absl::StatusOr<Received> first = receiver.inbox().Take(TieTag(1), Soon());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(send(2, absl::Now() + absl::Milliseconds(100)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(HoldsPattern(first->tensor, 1));
  first->slot = Slot();
  ASSERT_TRUE(send(2, Soon()).ok());
  const absl::StatusOr<Received> second = receiver.inbox().Take(TieTag(2), Soon());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(HoldsPattern(second->tensor, 2));
}

struct Fallback {
  const char* name;
  const char* sender_host;
  const char* receiver_host;
  const char* told_host;  // what the sender was told is the receiver's
  v1::Transport transport;
  const char* reason;
};

constexpr char kDifferent[] = "the workers are on different hosts";
const Fallback kFallbacks[] = {
    {"OtherHosts", "host-b", "host-a", "host-a", v1::TRANSPORT_AUTO, kDifferent},
    {"SenderOfNoHost", "", "host-a", "host-a", v1::TRANSPORT_AUTO, kDifferent},
    {"ReceiverOfNoHost", "host-a", "", "", v1::TRANSPORT_AUTO, kDifferent},
    {"WrongNews", "host-a", "host-b", "host-a", v1::TRANSPORT_AUTO, kDifferent},
    {"ForcedGrpc", "host-a", "host-a", "host-a", v1::TRANSPORT_GRPC, "pipeline.transport is grpc"},
};

class FallbackTest : public ::testing::TestWithParam<Fallback> {};
INSTANTIATE_TEST_SUITE_P(ShmLink, FallbackTest, ::testing::ValuesIn(kFallbacks),
                         [](const auto& info) { return info.param.name; });

TEST_P(FallbackTest, FramesCarryTheTensorsAndTheReasonIsSaid) {
  LoopbackStage receiver("127.0.0.1:0", {.rows = kPlan.rows, .host = GetParam().receiver_host});
  TestMemory memory(kPlan);
  LinkContext sender = TestContext(0, kPlan);
  sender.host = GetParam().sender_host;
  sender.transport = GetParam().transport;
  v1::Peer peer = receiver.peer();
  peer.mutable_host()->set_id(GetParam().told_host);
  const auto links = Connect(peer, sender);
  ASSERT_TRUE(links.ok()) << links.status();
  EXPECT_EQ((*links)->Describe()[0].transport(), "grpc");
  EXPECT_EQ((*links)->Describe()[0].reason(), GetParam().reason);
  ASSERT_TRUE(
      (*links)->Send(1, MakeOutgoing(ActivationTag(1, 0), kPlan, memory.pool(), 7), Soon()).ok());
  const absl::StatusOr<Received> got = receiver.inbox().Take(ActivationTag(1, 0), Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(HoldsPattern(got->tensor, 7));
  EXPECT_EQ(got->slot.pool(), receiver.pool());
}

TEST(ShmLink, ForcedWhereItIsImpossibleItSaysWhoAndWhy) {
  LoopbackStage receiver("127.0.0.1:0", kPlan);
  LinkContext sender = TestContext(0, kPlan);
  sender.host = "host-b";
  sender.transport = v1::TRANSPORT_SHM;
  const absl::Status refused = Connect(receiver.peer(), sender).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("link to stage 1 (worker w1, "));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("pipeline.transport is shm, but the workers are on different hosts"));
}

// A stage of this host that could get no memory to share.
TEST(ShmLink, AReceiverThatGotNoMemorySaysWhy) {
  Inbox inbox([](const Tag& tag) { return absl::NotFoundError(""); });
  StageDirectory directory;
  directory.Enter(TestContext(1, kPlan), &inbox,
                  {nullptr, "cannot take 99 bytes of shared memory: No space left on device", {}});
  GrpcStageService service(&directory);
  grpc::ServerBuilder builder;
  int port = 0;
  ASSERT_TRUE(AddListener(&builder, "127.0.0.1:0", &port).ok());
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  v1::Peer peer;
  peer.set_stage(1);
  peer.set_worker("w1");
  peer.set_address(absl::StrCat("127.0.0.1:", port));
  peer.mutable_host()->set_id(kPlan.host);
  LinkContext sender = TestContext(0, kPlan);
  const auto links = Connect(peer, sender);
  ASSERT_TRUE(links.ok()) << links.status();
  EXPECT_EQ((*links)->Describe()[0].reason(),
            "cannot take 99 bytes of shared memory: No space left on device");
  (*links)->Close();
  directory.Leave("j1", 3);
}

// A receiver that says what it likes.
class LyingReceiver : public v1::StageService::Service {
 public:
  using Talk = std::function<void(
      grpc::ServerReaderWriter<v1::StreamTensorsResponse, v1::StreamTensorsRequest>*)>;
  explicit LyingReceiver(Talk talk) : talk_(std::move(talk)) {
    grpc::ServerBuilder builder;
    int port = 0;
    if (!AddListener(&builder, "127.0.0.1:0", &port).ok()) abort();
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    peer_.set_stage(1);
    peer_.set_worker("w1");
    peer_.set_address(absl::StrCat("127.0.0.1:", port));
    peer_.mutable_host()->set_id(kPlan.host);
  }
  ~LyingReceiver() override {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }
  const v1::Peer& peer() const { return peer_; }

  grpc::Status StreamTensors(grpc::ServerContext*,
                             grpc::ServerReaderWriter<v1::StreamTensorsResponse,
                                                      v1::StreamTensorsRequest>* stream) override {
    v1::StreamTensorsRequest request;
    stream->Read(&request);
    talk_(stream);
    while (stream->Read(&request)) {
    }
    return grpc::Status::OK;
  }

 private:
  const Talk talk_;
  std::unique_ptr<grpc::Server> server_;
  v1::Peer peer_;
};

v1::StreamTensorsResponse OfferOf(const SharedRegion& region) {
  v1::StreamTensorsResponse offer;
  offer.mutable_shared_memory()->set_process(region.name().process);
  offer.mutable_shared_memory()->set_file(region.name().file);
  offer.mutable_shared_memory()->set_bytes(region.name().bytes);
  offer.mutable_shared_memory()->set_nonce(region.name().nonce);
  return offer;
}

v1::StreamTensorsResponse Credits(int64_t credits) {
  v1::StreamTensorsResponse ack;
  ack.set_activation_credits(credits);
  ack.set_gradient_credits(credits);
  return ack;
}

TEST(ShmLink, MemoryThatIsNotWhatWasMeantMeansFrames) {
  const auto region = *SharedRegion::Create(1 << 20);
  v1::StreamTensorsResponse offer = OfferOf(*region);
  offer.mutable_shared_memory()->set_nonce(std::string(16, 'x'));
  std::promise<std::string> promised;
  LyingReceiver receiver([&](auto* stream) {
    stream->Write(offer);
    v1::StreamTensorsRequest request;
    stream->Read(&request);
    promised.set_value(request.header().not_attached());
    stream->Write(Credits(2));
  });
  const auto links = Connect(receiver.peer(), TestContext(0, kPlan));
  ASSERT_TRUE(links.ok()) << links.status();
  EXPECT_EQ((*links)->Describe()[0].transport(), "grpc");
  EXPECT_THAT((*links)->Describe()[0].reason(),
              HasSubstr("worker w1's memory cannot be attached: "));
  EXPECT_THAT((*links)->Describe()[0].reason(), HasSubstr("is other memory than was meant"));
  std::future<std::string> answer = promised.get_future();
  ASSERT_EQ(answer.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  EXPECT_EQ(answer.get(), (*links)->Describe()[0].reason());
}

struct Lie {
  const char* name;
  std::vector<v1::StreamTensorsResponse> acks;  // after the offer was answered
  const char* text;
};

v1::StreamTensorsResponse Slots(int64_t credits, const std::vector<int64_t>& slots) {
  v1::StreamTensorsResponse ack = Credits(credits);
  for (const int64_t slot : slots) ack.add_activation_slots(slot);
  ack.set_gradient_credits(0);
  return ack;
}

class LieTest : public ::testing::TestWithParam<Lie> {};
INSTANTIATE_TEST_SUITE_P(
    ShmLink, LieTest,
    ::testing::Values(
        Lie{"FewerSlotsThanCredits", {Slots(2, {4096})}, "2 credits and 1 slots"},
        Lie{"CreditsWithoutSlots", {Slots(1, {4096}), Slots(1, {})}, "1 credits and 0 slots"},
        Lie{"SlotsAfterAll", {Credits(1), Slots(1, {4096})}, "1 credits and 1 slots"},
        Lie{"OutsideTheMemory",
            {Slots(1, {int64_t{1} << 40})},
            "a slot that is not within the receiver's memory"},
        Lie{"AcrossItsEnd",
            {Slots(1, {(1 << 20) - 64})},
            "a slot that is not within the receiver's memory"}),
    [](const auto& info) { return info.param.name; });

TEST_P(LieTest, AReceiversLieBreaksTheLinkAndNothingElse) {
  const auto region = *SharedRegion::Create(1 << 20);
  LyingReceiver receiver([&](auto* stream) {
    stream->Write(OfferOf(*region));
    v1::StreamTensorsRequest request;
    stream->Read(&request);
    for (const v1::StreamTensorsResponse& ack : GetParam().acks) stream->Write(ack);
  });
  absl::Status cause;
  absl::Notification lost;
  TestMemory memory(kPlan);
  auto links =
      ConnectLinks(TestContext(0, kPlan), {receiver.peer()}, Soon(), [&](int, absl::Status why) {
        cause = std::move(why);
        lost.Notify();
      });
  if (links.ok()) {
    (void)(*links)->Send(1, MakeOutgoing(ActivationTag(1, 0), kPlan, memory.pool(), 1), Soon());
    ASSERT_TRUE(lost.WaitForNotificationWithTimeout(absl::Seconds(20)));
  } else {
    cause = links.status();
  }
  EXPECT_EQ(cause.code(), absl::StatusCode::kInternal) << cause;
  EXPECT_THAT(std::string(cause.message()), HasSubstr(GetParam().text));
}

}  // namespace
}  // namespace headrace
