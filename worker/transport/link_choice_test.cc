#include "worker/transport/link_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

const LinkEnd kCpu = {"host-a", ""};
const LinkEnd kGpu0 = {"host-a", "GPU-0"};
const LinkEnd kGpu1 = {"host-a", "GPU-1"};
const LinkEnd kFar = {"host-b", "GPU-2"};
const LinkEnd kNowhere = {"", "GPU-3"};

struct Case {
  const char* name;
  v1::Transport transport;
  LinkEnd sender, receiver;
  bool cuda_ipc, nccl;
  const char* why_not;
};

constexpr char kHosts[] = "cuda_ipc: the workers are on different hosts";
constexpr char kOneGpu[] = "nccl: both stages are on one GPU";
const Case kCases[] = {
    {"AutoOnOneGpu", v1::TRANSPORT_AUTO, kGpu0, kGpu0, true, false, kOneGpu},
    {"AutoOnOneHost", v1::TRANSPORT_AUTO, kGpu0, kGpu1, true, true, ""},
    {"UnspecifiedIsAuto", v1::TRANSPORT_UNSPECIFIED, kGpu0, kGpu1, true, true, ""},
    {"AutoOnTwoHosts", v1::TRANSPORT_AUTO, kGpu0, kFar, false, true, kHosts},
    {"AutoOfUnknownHosts", v1::TRANSPORT_AUTO, kNowhere, kNowhere, false, false,
     "cuda_ipc: the workers are on different hosts; nccl: both stages are on one GPU"},
    {"AutoFromCpu", v1::TRANSPORT_AUTO, kCpu, kGpu0, false, false,
     "the sender's tensors lie in host memory"},
    {"AutoToCpu", v1::TRANSPORT_AUTO, kGpu0, kCpu, false, false,
     "the receiver's tensors lie in host memory"},
    {"AutoBetweenCpus", v1::TRANSPORT_AUTO, kCpu, kCpu, false, false, ""},
    {"ForcedIpc", v1::TRANSPORT_CUDA_IPC, kGpu0, kGpu1, true, false, ""},
    {"ForcedIpcOnTwoHosts", v1::TRANSPORT_CUDA_IPC, kGpu0, kFar, false, false, kHosts},
    {"ForcedIpcBetweenCpus", v1::TRANSPORT_CUDA_IPC, kCpu, kCpu, false, false,
     "neither stage is on a CUDA device"},
    {"ForcedNccl", v1::TRANSPORT_NCCL, kGpu0, kGpu1, false, true, ""},
    {"ForcedNcclOnOneGpu", v1::TRANSPORT_NCCL, kGpu0, kGpu0, false, false, kOneGpu},
    {"ForcedNcclFromCpu", v1::TRANSPORT_NCCL, kCpu, kFar, false, false,
     "the sender's tensors lie in host memory"},
    {"ForcedGrpc", v1::TRANSPORT_GRPC, kGpu0, kGpu1, false, false, ""},
    {"ForcedShm", v1::TRANSPORT_SHM, kGpu0, kGpu1, false, false, ""},
};

class LinkChoiceTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, LinkChoiceTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(LinkChoiceTest, TriesWhatCanBeAndSaysWhyNotTheRest) {
  const DevicePaths paths =
      ChooseDevicePaths(GetParam().transport, GetParam().sender, GetParam().receiver);
  EXPECT_EQ(paths.cuda_ipc, GetParam().cuda_ipc);
  EXPECT_EQ(paths.nccl, GetParam().nccl);
  EXPECT_EQ(paths.why_not, GetParam().why_not);
}

TEST(LinkChoice, NamesAreThoseOfTheJobFile) {
  EXPECT_EQ(TransportName(v1::TRANSPORT_UNSPECIFIED), "auto");
  EXPECT_EQ(TransportName(v1::TRANSPORT_CUDA_IPC), "cuda_ipc");
  EXPECT_EQ(TransportName(v1::TRANSPORT_NCCL), "nccl");
}

}  // namespace
}  // namespace headrace
