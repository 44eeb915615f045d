// Links between stages on devices: which way is agreed on and why, that tensors arrive whole on
// each, when they may be read and overwritten, and what is said where it goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <thread>

#include "common/cancellation.h"
#include "worker/transport/device_loopback.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TestPlan PlanOn(const std::string& host) { return {.rows = 40, .host = host}; }

// Makes LoadNccl find the fake; once a process, as LoadNccl looks once.
const bool kFakeNccl = setenv("HEADRACE_NCCL", HEADRACE_FAKE_NCCL, 1) == 0;

class DeviceLinkTest : public ::testing::Test {
 protected:
  struct Setting {
    std::string sender_gpu = "GPU-0", receiver_gpu = "GPU-1";
    std::string sender_host = "host-a", receiver_host = "host-a";
    v1::Transport transport = v1::TRANSPORT_AUTO;
  };
  ~DeviceLinkTest() override {
    for (const char* name : {"FAIL", "LATE", "HANG", "CORRUPT"}) {
      unsetenv(absl::StrCat("FAKE_NCCL_", name).c_str());
    }
    if (links_ != nullptr) links_->Close();
  }

  void SetUpEnds(const Setting& setting) {
    setting_ = setting;
    links_ = nullptr;  // what was set up before goes in the order of use
    receiver_ = nullptr;
    receiver_end_ =
        std::make_unique<DeviceEnd>(setting.receiver_gpu, PlanOn(setting.receiver_host));
    sender_end_ = std::make_unique<DeviceEnd>(setting.sender_gpu, PlanOn(setting.sender_host));
    receiver_ = std::make_unique<DeviceStage>(receiver_end_.get(), PlanOn(setting.receiver_host),
                                              setting.transport);
  }
  LinkContext SenderContext() {
    LinkContext context = TestContext(0, PlanOn(setting_.sender_host));
    context.transport = setting_.transport;
    context.device = &sender_end_->device();
    return context;
  }
  absl::Status Connect() { return Connect(SenderContext()); }
  absl::Status Connect(const LinkContext& context) {
    auto links = ConnectLinks(context, {receiver_->peer()}, Soon(), [this](int, absl::Status why) {
      absl::MutexLock lock(&mu_);
      lost_ = std::move(why);
    });
    if (!links.ok()) return links.status();
    links_ = *std::move(links);
    return absl::OkStatus();
  }
  void Connected(const Setting& setting, const std::string& transport, const std::string& reason) {
    SetUpEnds(setting);
    const absl::Status connected = Connect();
    ASSERT_TRUE(connected.ok()) << connected;
    EXPECT_EQ(links_->Describe()[0].transport(), transport);
    EXPECT_EQ(links_->Describe()[0].reason(), reason);
  }
  absl::Status Send(const Tag& tag, int seed) {
    return links_->Send(
        1, MakeDeviceOutgoing(tag, PlanOn(setting_.sender_host), sender_end_.get(), seed), Soon());
  }
  // Several steps of tensors and small messages, through slots that come back.
  void TensorsArrive() {
    for (int step = 1; step <= 3; ++step) {
      for (int mb = 0; mb < 4; ++mb) {
        const int seed = 10 * step + mb;
        ASSERT_TRUE(Send(ActivationTag(step, mb), seed).ok());
        absl::StatusOr<Received> got = receiver_->inbox().Take(ActivationTag(step, mb), Soon());
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_TRUE(HoldsPattern(got->tensor, seed));
        EXPECT_EQ(got->slot.pool(), receiver_end_->pool());
        EXPECT_EQ(got->tensor.data, got->slot.data());
        EXPECT_FALSE(got->staged.valid());
      }
      ASSERT_TRUE(links_->Send(1, MakeDecision(DecisionTag(step), step), Soon()).ok());
      absl::StatusOr<Received> decided = receiver_->inbox().Take(DecisionTag(step), Soon());
      ASSERT_TRUE(decided.ok()) << decided.status();
      EXPECT_EQ(decided->tensor.f64()[2], step);
    }
    const absl::Status finished = links_->Finish(Soon());
    EXPECT_TRUE(finished.ok()) << finished;
    links_->Close();
    EXPECT_EQ(sender_end_->pool()->free_slots(), 4);
    EXPECT_EQ(sender_end_->staged_out()->free_slots(), 3);
    EXPECT_EQ(receiver_end_->pool()->free_slots(), 4);
    EXPECT_EQ(receiver_end_->staged()->free_slots(), 4);
    EXPECT_EQ(sender_end_->device().imports(), 0);
    EXPECT_EQ(sender_end_->device().streams(), 0);
    receiver_->Leave();
    EXPECT_EQ(receiver_end_->device().streams(), 0);
  }
  std::string Lost() {
    absl::MutexLock lock(&mu_);
    const auto known = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !lost_.ok(); };
    mu_.AwaitWithTimeout(absl::Condition(&known), absl::Seconds(20));
    return std::string(lost_.message());
  }

  Setting setting_;
  std::unique_ptr<DeviceEnd> receiver_end_, sender_end_;
  std::unique_ptr<DeviceStage> receiver_;
  std::unique_ptr<Links> links_;
  absl::Mutex mu_;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
};

TEST_F(DeviceLinkTest, OnOneGpuTensorsGoFromMemoryToMemory) {
  Connected({.receiver_gpu = "GPU-0"}, "cuda_ipc", "both stages are on one GPU");
  // The slots are the sender's before anything comes; nothing is staged.
  EXPECT_EQ(receiver_end_->pool()->free_slots(), 2);
  EXPECT_EQ(receiver_end_->staged()->free_slots(), 4);
  TensorsArrive();
}
TEST_F(DeviceLinkTest, OnOneHostToo) {
  Connected({}, "cuda_ipc", "the GPUs are of one host");
  TensorsArrive();
}
TEST_F(DeviceLinkTest, OnTwoHostsTheyGoByNccl) {
  Connected({.receiver_host = "host-b"}, "nccl", "NCCL 2.28.9, different GPUs");
  TensorsArrive();
}
TEST_F(DeviceLinkTest, ByNcclOnOneHostWhereThatIsForced) {
  Connected({.transport = v1::TRANSPORT_NCCL}, "nccl", "NCCL 2.28.9, different GPUs");
  TensorsArrive();
}
TEST_F(DeviceLinkTest, InFramesThroughPinnedMemoryWhereThatIsForced) {
  Connected({.transport = v1::TRANSPORT_GRPC}, "grpc", "pipeline.transport is grpc");
  TensorsArrive();
}
TEST_F(DeviceLinkTest, ThroughSharedHostMemoryWhereThatIsForced) {
  Connected({.transport = v1::TRANSPORT_SHM}, "shm", "both workers are on one host");
  TensorsArrive();
}

TEST_F(DeviceLinkTest, ARefusedImportFallsBackToNccl) {
  SetUpEnds({});
  sender_end_->device().Fail("Import");
  ASSERT_TRUE(Connect().ok());
  EXPECT_EQ(links_->Describe()[0].transport(), "nccl");
  EXPECT_EQ(links_->Describe()[0].reason(),
            "NCCL 2.28.9, different GPUs; cuda_ipc: Import: fake error");
  TensorsArrive();
}
TEST_F(DeviceLinkTest, AnExportThatIsRefusedFallsBackToNccl) {
  SetUpEnds({});
  receiver_end_->device().Fail("Export");
  ASSERT_TRUE(Connect().ok());
  EXPECT_EQ(links_->Describe()[0].reason(),
            "NCCL 2.28.9, different GPUs; cuda_ipc: Export: fake error");
  TensorsArrive();
}
// The offsets of slots are held to what was really opened: a receiver that says it has more is not
// believed, whatever else it says.
TEST_F(DeviceLinkTest, AReceiverThatClaimsTooMuchFallsBackToNccl) {
  SetUpEnds({});
  const int64_t bytes = receiver_end_->device().memory_bytes();
  receiver_end_->device().Claim(bytes + 1);
  ASSERT_TRUE(Connect().ok());
  EXPECT_EQ(links_->Describe()[0].reason(),
            absl::StrCat("NCCL 2.28.9, different GPUs; cuda_ipc: an offer of ", bytes + 1,
                         " bytes, where there are ", bytes));
  EXPECT_EQ(sender_end_->device().imports(), 0);
  TensorsArrive();
}
TEST_F(DeviceLinkTest, AWrongMemoryIsNoticedAndFallsBack) {
  SetUpEnds({.receiver_gpu = "GPU-0"});
  sender_end_->device().Misdirect(sender_end_->device().memory());
  ASSERT_TRUE(Connect().ok());
  EXPECT_EQ(links_->Describe()[0].transport(), "shm");
  EXPECT_EQ(links_->Describe()[0].reason(),
            "both workers are on one host; nccl: both stages are on one GPU; cuda_ipc: what was "
            "opened is not the memory that was meant");
  EXPECT_EQ(sender_end_->device().imports(), 0);
  TensorsArrive();
}

struct Refusal {
  const char* name;
  const char* call;  // of NCCL, which fails …
  const char* how;
  const char* why;
};
const Refusal kRefusals[] = {
    {"NoId", "ncclGetUniqueId", "FAIL", "nccl: ncclGetUniqueId: internal error"},
    {"SenderTrial", "ncclSend", "FAIL", "nccl: at the sender: ncclSend: invalid usage"},
    {"ReceiverTrial", "ncclRecv", "LATE", "nccl: ncclRecv: internal error"},
    {"BothInit", "ncclCommInitRankConfig", "LATE", "ncclCommInitRankConfig: internal error"},
    {"WrongTrial", "1", "CORRUPT", "nccl: the trial came through wrong"},
};
class NcclRefusalTest : public DeviceLinkTest, public ::testing::WithParamInterface<Refusal> {};
INSTANTIATE_TEST_SUITE_P(DeviceLink, NcclRefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

TEST_P(NcclRefusalTest, FallsBackToFrames) {
  SetUpEnds({.receiver_host = "host-b"});
  setenv(absl::StrCat("FAKE_NCCL_", GetParam().how).c_str(), GetParam().call, 1);
  const absl::Time began = absl::Now();
  ASSERT_TRUE(Connect().ok());
  EXPECT_LT(absl::Now() - began, absl::Seconds(5)) << "waited for a deadline";
  EXPECT_EQ(links_->Describe()[0].transport(), "grpc");
  EXPECT_THAT(links_->Describe()[0].reason(), HasSubstr(GetParam().why));
  EXPECT_THAT(links_->Describe()[0].reason(),
              HasSubstr("cuda_ipc: the workers are on different hosts"));
  TensorsArrive();
}
TEST_P(NcclRefusalTest, IsTheReasonWhereNcclIsForced) {
  SetUpEnds({.transport = v1::TRANSPORT_NCCL});
  setenv(absl::StrCat("FAKE_NCCL_", GetParam().how).c_str(), GetParam().call, 1);
  const absl::Status refused = Connect();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("link to stage 1 (worker w1, "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("pipeline.transport is nccl, but nccl: "));
}

TEST_F(DeviceLinkTest, AForcedTransportThatCannotBeSaysWhoAndWhy) {
  SetUpEnds({.receiver_host = "host-b", .transport = v1::TRANSPORT_CUDA_IPC});
  EXPECT_THAT(
      std::string(Connect().message()),
      HasSubstr("pipeline.transport is cuda_ipc, but cuda_ipc: the workers are on different "
                "hosts"));
  SetUpEnds({.receiver_gpu = "GPU-0", .transport = v1::TRANSPORT_NCCL});
  EXPECT_THAT(std::string(Connect().message()),
              HasSubstr("pipeline.transport is nccl, but nccl: both stages are on one GPU"));
  SetUpEnds({.transport = v1::TRANSPORT_CUDA_IPC});
  LinkContext cpu = SenderContext();
  cpu.device = nullptr;
  const absl::Status refused = Connect(cpu);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("pipeline.transport is cuda_ipc, but the sender's tensors lie in host "
                        "memory"));
}

TEST_F(DeviceLinkTest, AStageInHostMemorySendsToOneOnADevice) {
  SetUpEnds({});
  TestMemory memory(PlanOn("host-a"));
  LinkContext cpu = SenderContext();
  cpu.device = nullptr;
  ASSERT_TRUE(Connect(cpu).ok());
  EXPECT_EQ(links_->Describe()[0].transport(), "shm");
  for (int mb = 0; mb < 8; ++mb) {
    const Tag tag = ActivationTag(1, mb);
    ASSERT_TRUE(
        links_->Send(1, MakeOutgoing(tag, PlanOn("host-a"), memory.pool(), mb), Soon()).ok());
    absl::StatusOr<Received> got = receiver_->inbox().Take(tag, Soon());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(HoldsPattern(got->tensor, mb));
    EXPECT_EQ(got->slot.pool(), receiver_end_->pool());
  }
}
TEST_F(DeviceLinkTest, AStageOnADeviceSendsToOneInHostMemory) {
  SetUpEnds({});
  LoopbackStage receiver("127.0.0.1:0", PlanOn("host-a"));
  auto links = ConnectLinks(SenderContext(), {receiver.peer()}, Soon(), [](int, absl::Status) {});
  ASSERT_TRUE(links.ok()) << links.status();
  links_ = *std::move(links);
  EXPECT_EQ(links_->Describe()[0].transport(), "shm");
  EXPECT_EQ(links_->Describe()[0].reason(),
            "both workers are on one host; the receiver's tensors lie in host memory");
  for (int mb = 0; mb < 8; ++mb) {
    ASSERT_TRUE(Send(ActivationTag(1, mb), mb).ok());
    absl::StatusOr<Received> got = receiver.inbox().Take(ActivationTag(1, mb), Soon());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(HoldsPattern(got->tensor, mb));
  }
  links_->Close();
}

// Tokens and decisions go down the stream: no way between devices is needed, nor missed where one
// is forced.
TEST_F(DeviceLinkTest, AnEdgeOfNumbersOnlyIsTakenAsItIs) {
  for (const v1::Transport transport : {v1::TRANSPORT_AUTO, v1::TRANSPORT_NCCL}) {
    SetUpEnds({.transport = transport});
    LinkContext context = SenderContext();
    context.stage = 2;  // whose tensors stage 1 has no pools for
    ASSERT_TRUE(Connect(context).ok());
    EXPECT_THAT(links_->Describe()[0].reason(), HasSubstr("no tensors go this way"));
    ASSERT_TRUE(links_->Send(1, MakeDecision(DecisionTag(1, 2), 4), Soon()).ok());
    const absl::StatusOr<Received> got = receiver_->inbox().Take(DecisionTag(1, 2), Soon());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->tensor.f64()[0], 4);
    links_->Close();
  }
}

// A tensor leaves when compute has made it, not when it was handed over.
TEST_F(DeviceLinkTest, NothingIsCopiedBeforeComputeHasMadeIt) {
  for (const v1::Transport transport : {v1::TRANSPORT_CUDA_IPC, v1::TRANSPORT_GRPC}) {
    SetUpEnds({.transport = transport});
    ASSERT_TRUE(Connect().ok());
    sender_end_->device().HoldCompute();
    Outgoing outgoing =
        MakeDeviceOutgoing(ActivationTag(1, 0), PlanOn("host-a"), sender_end_.get(), 1);
    void* const data = outgoing.tensor.data;
    ASSERT_TRUE(links_->Send(1, std::move(outgoing), Soon()).ok());
    EXPECT_EQ(receiver_->inbox()
                  .Take(ActivationTag(1, 0), absl::Now() + absl::Milliseconds(100))
                  .status()
                  .code(),
              absl::StatusCode::kDeadlineExceeded);
    const Outgoing late =
        MakeOutgoing(ActivationTag(1, 0), PlanOn("host-a"), sender_end_->pool(), 2);
    std::memcpy(data, late.tensor.data, static_cast<size_t>(late.tensor.bytes()));
    sender_end_->device().ReleaseCompute();
    absl::StatusOr<Received> got = receiver_->inbox().Take(ActivationTag(1, 0), Soon());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(HoldsPattern(got->tensor, 2));
    got = absl::CancelledError("");
    links_->Close();
  }
}

// A slot that was let go may still be read by what compute was told before.
TEST_F(DeviceLinkTest, ASlotIsGrantedAgainOnlyWhenComputeIsDoneWithIt) {
  SetUpEnds({.transport = v1::TRANSPORT_CUDA_IPC});
  ASSERT_TRUE(Connect().ok());
  for (int mb = 0; mb < 2; ++mb) ASSERT_TRUE(Send(ActivationTag(1, mb), mb).ok());
  receiver_end_->device().HoldCompute();
  for (int mb = 0; mb < 2; ++mb) {
    ASSERT_TRUE(receiver_->inbox().Take(ActivationTag(1, mb), Soon()).ok());
  }
  const auto third = [this](absl::Time deadline) {
    return links_->Send(
        1, MakeDeviceOutgoing(ActivationTag(1, 2), PlanOn("host-a"), sender_end_.get(), 2),
        deadline);
  };
  EXPECT_EQ(third(absl::Now() + absl::Milliseconds(100)).code(),
            absl::StatusCode::kDeadlineExceeded);
  receiver_end_->device().ReleaseCompute();
  EXPECT_TRUE(third(Soon()).ok());
}

TEST_F(DeviceLinkTest, ACopyThatDoesNotEndIsGivenUpAtItsDeadlineAndSaysWhichOne) {
  SetUpEnds({.transport = v1::TRANSPORT_CUDA_IPC});
  LinkContext context = SenderContext();
  context.copy_timeout = absl::Milliseconds(200);
  ASSERT_TRUE(Connect(context).ok());
  sender_end_->device().Hold();
  ASSERT_TRUE(Send(ActivationTag(5, 3), 1).ok());
  EXPECT_THAT(Lost(),
              ::testing::MatchesRegex(
                  "link to stage 1 \\(worker w1, .*\\): job j1: activation of step 5, "
                  "micro-batch 3, from stage 0: the device has not copied it after 0\\..*"));
  sender_end_->device().Release();
}
TEST_F(DeviceLinkTest, AnNcclTransferThatDoesNotEndLikewise) {
  SetUpEnds({.transport = v1::TRANSPORT_NCCL});
  LinkContext context = SenderContext();
  context.copy_timeout = absl::Milliseconds(200);
  ASSERT_TRUE(Connect(context).ok());
  setenv("FAKE_NCCL_HANG", "ncclSend", 1);
  ASSERT_TRUE(Send(ActivationTag(5, 3), 1).ok());
  EXPECT_THAT(Lost(), HasSubstr("job j1: activation of step 5, micro-batch 3, from stage 0: "
                                "ncclSend has not ended after 0."));
  const absl::Status taken = receiver_->inbox().Take(ActivationTag(5, 3), Soon()).status();
  EXPECT_THAT(std::string(taken.message()), HasSubstr("stream from stage 0"));
}
TEST_F(DeviceLinkTest, AFailingDeviceEndsTheLinkAndSaysWhat) {
  SetUpEnds({.transport = v1::TRANSPORT_CUDA_IPC});
  ASSERT_TRUE(Connect().ok());
  sender_end_->device().Fail("Copy");
  ASSERT_TRUE(Send(ActivationTag(1, 0), 1).ok());
  EXPECT_THAT(Lost(),
              HasSubstr("activation of step 1, micro-batch 0, from stage 0: Copy: fake error"));
}

TEST_F(DeviceLinkTest, ClosingEndsATransferUnderWay) {
  for (const v1::Transport transport :
       {v1::TRANSPORT_CUDA_IPC, v1::TRANSPORT_NCCL, v1::TRANSPORT_GRPC}) {
    SetUpEnds({.transport = transport});
    ASSERT_TRUE(Connect().ok());
    sender_end_->device().Hold();
    setenv("FAKE_NCCL_HANG", "ncclSend", 1);
    ASSERT_TRUE(Send(ActivationTag(1, 0), 1).ok());
    const absl::Time began = absl::Now();
    links_->Close();
    receiver_->Leave();
    EXPECT_LT(absl::Now() - began, absl::Seconds(2));
    unsetenv("FAKE_NCCL_HANG");
    sender_end_->device().Release();
  }
}

TEST_F(DeviceLinkTest, SoDoesLeaving) {
  for (const v1::Transport transport : {v1::TRANSPORT_NCCL, v1::TRANSPORT_GRPC}) {
    SetUpEnds({.transport = transport});
    ASSERT_TRUE(Connect().ok());
    receiver_end_->device().Hold();
    setenv("FAKE_NCCL_HANG", "ncclSend", 1);
    ASSERT_TRUE(Send(ActivationTag(1, 0), 1).ok());
    EXPECT_EQ(receiver_->inbox()
                  .Take(ActivationTag(1, 0), absl::Now() + absl::Milliseconds(50))
                  .status()
                  .code(),
              absl::StatusCode::kDeadlineExceeded);
    const absl::Time began = absl::Now();
    receiver_->Leave();
    EXPECT_LT(absl::Now() - began, absl::Seconds(2));
    EXPECT_EQ(receiver_end_->device().streams(), 0);
    links_->Close();
    unsetenv("FAKE_NCCL_HANG");
  }
}

// A stream is over for its receiver before the sender hears that: what is taken then must not be
// acknowledged, for there are no slots any more that could go with it.
TEST_F(DeviceLinkTest, WhatIsTakenAfterTheEndIsNotAcknowledged) {
  SetUpEnds({.transport = v1::TRANSPORT_CUDA_IPC});
  ASSERT_TRUE(Connect().ok());
  ASSERT_TRUE(Send(ActivationTag(1, 0), 1).ok());
  receiver_end_->device().HoldStreams();
  auto finishing = std::async(std::launch::async, [this] { return links_->Finish(Soon()); });
  ASSERT_TRUE(receiver_end_->device().AwaitGoingStream(absl::Seconds(20)));
  const absl::StatusOr<Received> got = receiver_->inbox().Take(ActivationTag(1, 0), Soon());
  EXPECT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(finishing.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  receiver_end_->device().ReleaseStreams();
  const absl::Status finished = finishing.get();
  EXPECT_TRUE(finished.ok()) << finished;
}

// Cancelled at any moment of it: the writer, which has nothing to do yet, must leave the device's
// end to the trial. The sanitizers' builds tell.
TEST_F(DeviceLinkTest, CancellingWhileTheEndsTryEachOtherLeavesNothingOpen) {
  for (const v1::Transport transport : {v1::TRANSPORT_CUDA_IPC, v1::TRANSPORT_NCCL}) {
    for (int moment = 0; moment < 20; ++moment) {
      SetUpEnds({.transport = transport});
      Cancellation cancellation;
      std::thread cancelling([&] {
        absl::SleepFor(absl::Microseconds(400 * moment));
        cancellation.Cancel();
      });
      auto links = ConnectLinks(
          SenderContext(), {receiver_->peer()}, Soon(), [](int, absl::Status) {}, &cancellation);
      cancelling.join();
      if (links.ok()) (*links)->Close();
      receiver_->Leave();
      EXPECT_EQ(sender_end_->device().imports(), 0);
      EXPECT_EQ(sender_end_->device().streams(), 0);
      EXPECT_EQ(receiver_end_->device().streams(), 0);
    }
  }
}

// A generation after another, on the same workers: nothing is left of the first.
TEST_F(DeviceLinkTest, ANewGenerationConnectsAnew) {
  for (const v1::Transport transport : {v1::TRANSPORT_CUDA_IPC, v1::TRANSPORT_NCCL}) {
    SetUpEnds({.transport = transport});
    ASSERT_TRUE(Connect().ok());
    ASSERT_TRUE(Send(ActivationTag(1, 0), 1).ok());
    links_->Close();
    receiver_->Leave();
    DeviceStage next(receiver_end_.get(), PlanOn("host-a"), transport, "127.0.0.1:0", 4);
    LinkContext context = SenderContext();
    context.generation = 4;
    auto links = ConnectLinks(context, {next.peer()}, Soon(), [](int, absl::Status) {});
    ASSERT_TRUE(links.ok()) << links.status();
    links_ = *std::move(links);
    ASSERT_TRUE(Send(ActivationTag(1, 0), 7).ok());
    absl::StatusOr<Received> got = next.inbox().Take(ActivationTag(1, 0), Soon());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(HoldsPattern(got->tensor, 7));
    links_->Close();
    got = absl::CancelledError("");
  }
}

}  // namespace
}  // namespace headrace
