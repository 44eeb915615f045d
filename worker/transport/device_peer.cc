// The other end of a link between devices, as a process a test can stop and kill.
//   device_peer receive HOST TRANSPORT           stage 1; prints its address, takes nothing
//   device_peer send HOST TRANSPORT ADDRESS      stage 0; sends stage 1 a tensor, prints "sent",
//   and
//                                                then another
// HOST is TestPlan's, TRANSPORT the enum's name. HEADRACE_NCCL names the fake.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/process.h"
#include "worker/transport/device_loopback.h"

namespace headrace {
namespace {

v1::Transport TransportOf(const char* name) {
  v1::Transport transport = v1::TRANSPORT_UNSPECIFIED;
  if (!v1::Transport_Parse(name, &transport)) exit(2);
  return transport;
}

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int Receive(const TestPlan& plan, v1::Transport transport) {
  DeviceEnd end("GPU-1", plan);
  DeviceStage stage(&end, plan, transport);
  Say(stage.address());
  for (;;) pause();
}

int Send(const TestPlan& plan, v1::Transport transport, const std::string& address) {
  DeviceEnd end("GPU-7", plan);
  v1::Peer peer;
  peer.set_stage(1);
  peer.set_worker("w1");
  peer.set_address(address);
  peer.mutable_host()->set_id(plan.host);
  LinkContext context = TestContext(0, plan);
  context.transport = transport;
  context.device = &end.device();
  auto links = ConnectLinks(context, {peer}, Soon(), [](int, absl::Status) {});
  if (!links.ok()) return 1;
  for (int mb : {0, 1}) {
    Outgoing outgoing = MakeDeviceOutgoing(ActivationTag(1, mb), plan, &end, 5);
    if (!(*links)->Send(1, std::move(outgoing), Soon()).ok()) return 1;
    if (mb == 0) Say("sent");
  }
  for (;;) pause();
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::DieWithParent();
  if (argc < 4) return 2;
  const headrace::TestPlan plan{.rows = 256, .host = argv[2]};
  const headrace::v1::Transport transport = headrace::TransportOf(argv[3]);
  if (std::strcmp(argv[1], "receive") == 0) return headrace::Receive(plan, transport);
  return argc == 5 ? headrace::Send(plan, transport, argv[4]) : 2;
}
