// How fast tensors travel from one stage to another of the same machine: GB/s and seconds of CPU a
// GB, both ends in this process. One tensor is taken as soon as it is whole, as an executor would.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include "common/process.h"
#include "worker/transport/loopback.h"

namespace headrace {
namespace {

void SendTensors(benchmark::State& state, const std::string& listen) {
  const TestPlan plan{.rows = state.range(0) / 1024};
  LoopbackStage receiver(listen, plan);
  TestMemory memory(plan);
  absl::StatusOr<std::unique_ptr<Outbox>> outbox =
      ConnectGrpcLinks(TestContext(0, plan), {receiver.peer()}, Soon(), [](int, absl::Status) {});
  if (!outbox.ok()) return state.SkipWithError(outbox.status().ToString().c_str());
  // As many in flight as there are credits.
  int64_t sent = 0;
  int64_t taken = 0;
  absl::Status status;
  const auto send = [&] {
    Outgoing outgoing;
    outgoing.tag = ActivationTag(1 + sent / 8, static_cast<int>(sent % 8));
    absl::StatusOr<Slot> slot = memory.pool()->Acquire(MemoryKind::kLink);
    if (!slot.ok()) return status.Update(slot.status());
    outgoing.slot = *std::move(slot);
    outgoing.tensor.data = outgoing.slot.data();
    outgoing.tensor.shape = plan.shape();
    status.Update((*outbox)->Send(1, std::move(outgoing), Soon()));
    ++sent;
  };
  send();
  for (auto _ : state) {
    send();
    const Tag tag = ActivationTag(1 + taken / 8, static_cast<int>(taken % 8));
    status.Update(receiver.inbox().Take(tag, Soon()).status());
    ++taken;
    if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  }
  state.SetBytesProcessed(taken * plan.bytes());
  (*outbox)->Close();
}

void Tcp(benchmark::State& state) { SendTensors(state, "127.0.0.1:0"); }
void UnixSocket(benchmark::State& state) {
  SendTensors(state, absl::StrCat("unix:/tmp/headrace-link-bench-", getpid()));
}
BENCHMARK(UnixSocket)
    ->Arg(256 << 10)
    ->Arg(4 << 20)
    ->Arg(64 << 20)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK(Tcp)->Arg(256 << 10)->Arg(4 << 20)->Arg(64 << 20)->UseRealTime()->MeasureProcessCPUTime();

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::TuneMalloc();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
