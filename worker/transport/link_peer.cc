// The other end of a link, as a process a test can stop and kill.
//   link_peer receive LISTEN ROWS HOST   stage 1; prints its address, takes nothing
//   link_peer send ADDRESS ROWS HOST     stage 0; sends one tensor to stage 1, prints "sent"
// ROWS and HOST are TestPlan's.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/process.h"
#include "worker/transport/loopback.h"

namespace headrace {
namespace {

int Receive(const std::string& listen, const TestPlan& plan) {
  LoopbackStage stage(listen, plan);
  std::printf("%s\n", stage.address().c_str());
  std::fflush(stdout);
  for (;;) pause();
}

int Send(const std::string& address, const TestPlan& plan) {
  v1::Peer peer;
  peer.set_stage(1);
  peer.set_worker("w1");
  peer.set_address(address);
  peer.mutable_host()->set_id(plan.host);
  TestMemory memory(plan);
  absl::StatusOr<std::unique_ptr<Links>> outbox =
      ConnectLinks(TestContext(0, plan), {peer}, Soon(), [](int, absl::Status) {});
  if (!outbox.ok()) return 1;
  const Tag tag = ActivationTag(1, 0);
  if (!(*outbox)->Send(1, MakeOutgoing(tag, plan, memory.pool(), 1), Soon()).ok()) return 1;
  std::printf("sent\n");
  std::fflush(stdout);
  for (;;) pause();
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::DieWithParent();
  if (argc != 5) return 2;
  const headrace::TestPlan plan{.rows = std::atoi(argv[3]), .host = argv[4]};
  return std::strcmp(argv[1], "receive") == 0 ? headrace::Receive(argv[2], plan)
                                              : headrace::Send(argv[2], plan);
}
