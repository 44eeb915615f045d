// A job as it comes back from the database, with its checkpoints: what a bit that flipped there may
// have made of it. The coordinator starts, its workers come back, and time passes.
#include <string>
#include <utility>

#include "coordinator/job_machine.h"
#include "plan/planner/planner.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_targets.h"

namespace headrace {
namespace {

v1::WorkerInfo WorkerOf(const v1::Placement& placement) {
  v1::WorkerInfo worker;
  worker.set_name(placement.worker());
  worker.set_instance(placement.instance());
  worker.set_address("127.0.0.1:1");
  worker.set_memory_limit_bytes(1 << 28);
  worker.set_threads(1);
  return worker;
}

// Models that take long to plan are of no interest here.
bool IsLarge(const v1::JobSpec& spec) {
  return spec.model().n_layer() > 32 || spec.model().num_hidden_layers() > 32 ||
         spec.training().micro_batches() > 64;
}

}  // namespace

void FuzzStoredJob(std::string_view bytes) {
  FuzzInput input(bytes);
  StoredJob stored;
  const uint8_t flags = input.Byte();
  stored.job.ParsePartialFromString(input.Piece());
  stored.options.ParsePartialFromString(input.Piece());
  if (IsLarge(stored.job.spec())) return;
  stored.job.set_id("j1");
  if (HasEnded(stored.job.state())) return;  // not restored

  PlanFunctions plan;
  plan.train = &PlanJob;
  plan.generate = &PlanGenerate;
  JobMachine machine(std::move(plan), 1);
  absl::Time now = absl::FromUnixSeconds(1'000'000);
  Commands out;
  machine.Restore({stored}, now, &out);
  int stage = 0;
  for (const v1::Placement& placement : stored.job.placement()) {
    if (stage >= 8) break;
    v1::StageStanding standing;
    standing.set_job_id("j1");
    standing.set_generation(stored.job.generation());
    standing.set_stage(stage++);
    standing.set_step(stored.job.step());
    WorkerJoined joined{WorkerOf(placement)};
    if (flags & 1) joined.standing = standing;
    machine.Handle(joined, now, &out);
  }
  for (int i = 0; i < 4; ++i) {
    now += absl::Seconds(7);
    machine.Handle(TimePassed{}, now, &out);
    FUZZ_CHECK(out.size() < 1000, "commands without end");
  }
}

}  // namespace headrace
