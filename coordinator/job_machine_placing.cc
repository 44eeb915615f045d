// The queue: which job is placed, and on which workers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/job_machine.h"
#include "coordinator/suited_workers.h"

namespace headrace {

std::vector<PlanWorker> ToPlanWorkers(const std::vector<v1::WorkerInfo>& workers) {
  std::vector<PlanWorker> planned;
  for (const v1::WorkerInfo& worker : workers) {
    PlanWorker& each = planned.emplace_back();
    each.name = worker.name();
    each.flops_per_second = worker.flops_per_second();
    each.memory_limit_bytes = worker.memory_limit_bytes();
    each.threads = static_cast<int>(std::clamp<int64_t>(worker.threads(), 1, 1024));
    each.bf16 = worker.bf16() || worker.has_sim();
    if (worker.has_sim()) each.sim = worker.sim();
    each.host = worker.host().id();
    each.device = DeviceKindOf(worker.device());
    // What no flag could have said is not taken for a link.
    const double rate = worker.link_bytes_per_second(), latency_s = worker.link_latency_s();
    if (rate >= 1e3 && rate <= 1e12 && latency_s >= 0 && latency_s <= 10) {
      each.link = {rate, latency_s};
    }
  }
  return planned;
}

absl::StatusOr<v1::Plan> JobMachine::PlanOn(const JobRun& run, const Infos& workers,
                                            Stages stages) const {
  if (run.generates()) return plan_.generate(run.job().spec(), ToPlanWorkers(workers));
  std::vector<PlanWorker> planned = ToPlanWorkers(workers);
  v1::JobSpec spec = run.job().spec();
  profiling_.FillIn(spec, workers, &planned);
  if (stages == Stages::kAny) spec.mutable_pipeline()->set_stages(0);
  return plan_.train(spec, &run.job().dataset(), planned, Advice::kNone);
}

JobMachine::Infos JobMachine::Preferred(const JobRun& run, Infos workers) {
  std::erase_if(workers,
                [&](const v1::WorkerInfo& each) { return run.avoided().contains(each.name()); });
  return workers;
}

absl::StatusOr<v1::Plan> JobMachine::PlanFor(const JobRun& run, const Infos& workers) const {
  const Infos others = Preferred(run, workers);
  // One that has run before goes on with what there is: its numbers do not depend on K.
  const bool fewer = run.job().generation() > 0 && run.job().spec().pipeline().stages() > 1;
  const auto plan_on = [&](const Infos& some) {
    absl::StatusOr<v1::Plan> plan = PlanOn(run, some, Stages::kAsked);
    return plan.ok() || !fewer || some.empty() ? plan : PlanOn(run, some, Stages::kAny);
  };
  absl::StatusOr<v1::Plan> plan = plan_on(others);
  return plan.ok() || others.size() == workers.size() ? plan : plan_on(workers);
}

StateBook::Living JobMachine::LivingAddresses() const {
  StateBook::Living living;
  for (const v1::WorkerInfo& worker : workers_.Answering()) {
    living[worker.name()] = worker.address();
  }
  return living;
}

void JobMachine::Place(Turn turn) {
  place_ = false;
  wake_at_ = absl::InfiniteFuture();
  blockers_ = {};
  for (const auto& [id, run] : running_) {
    if (run->returns()) blockers_[run->simulates()] = run.get();
  }
  size_t passed = 0;
  for (size_t i = 0; i < queue_.size() && passed <= kMaxPassed;) {
    const bool kind = queue_[i]->simulates();
    if (blockers_[kind] != nullptr) {
      ++i;
      continue;
    }
    const Placing placing = PlaceAt(i, turn);
    if (placing == Placing::kLeft) continue;
    if (placing == Placing::kBlocks) blockers_[kind] = queue_[i].get();
    if (placing == Placing::kPassed) ++passed;
    ++i;
  }
  ConsiderMoves(turn);
}

JobMachine::Placing JobMachine::PlaceAt(size_t i, Turn turn) {
  JobRun& run = *queue_[i];
  if (profiling_.UnderWay(run.job().id())) return Placing::kBlocks;
  if (turn.now < run.not_before()) {
    WakeAt(run.not_before());
    run.Wait("waits before it tries again: it got nowhere three times", turn);
    return Placing::kPassed;
  }
  const Infos free = SuitedWorkers(workers_.Free(), run.simulates());
  const std::vector<std::string> awaited = Awaited(run, turn.now);
  absl::StatusOr<v1::Plan> plan =
      awaited.empty() ? PlanFor(run, free) : absl::UnavailableError("its workers are busy");
  if (!awaited.empty() && run.job().spec().pipeline().stages() > 0) {
    plan = PlanOn(run, Preferred(run, free), Stages::kAsked);  // others may do
  }
  if (plan.ok() && Measures(&run, free, turn)) return Placing::kBlocks;
  if (plan.ok()) {
    StartOn(*plan, i, turn);
    return Placing::kLeft;
  }
  if (!awaited.empty()) {
    WakeAt(run.broke_at() + kPatience);
    run.Wait(absl::StrCat("waits for ", absl::StrJoin(awaited, ", "), " to end its stage"), turn);
    return Placing::kBlocks;
  }
  const bool may_wait =
      absl::IsUnavailable(plan.status()) || absl::IsFailedPrecondition(plan.status());
  if (!may_wait) {
    run.Fail(std::string(plan.status().message()), turn);
    profiling_.Forget(run.job().id(), turn);
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    return Placing::kLeft;
  }
  const Infos open = SuitedWorkers(workers_.Open(), run.simulates());
  const bool busy = free.size() < open.size() && PlanFor(run, open).ok();
  WaitForMore(&run, free, plan.status(), busy, turn);
  return busy ? Placing::kBlocks : Placing::kPassed;
}

void JobMachine::WaitForMore(JobRun* run, const Infos& free, const absl::Status& why, bool busy,
                             Turn turn) {
  const Infos living = workers_.Living();
  const size_t open = SuitedWorkers(workers_.Open(), run->simulates()).size();
  const size_t closed = SuitedWorkers(living, run->simulates()).size() - open;
  const std::string count = absl::StrCat(" (", free.size(), " of ", open, " free)");
  const absl::Status suited = CheckSuited(living, run->simulates());
  run->Wait(busy           ? absl::StrCat("waits for busy workers", count)
            : !suited.ok() ? absl::StrCat("waits for workers: ", suited.message())
            : open > 0     ? absl::StrCat("waits for workers", count, ": ", why.message())
            : closed > 0   ? absl::StrCat("waits for workers: all ", closed,
                                          " that are there are cordoned or leave")
                           : "waits for workers: none is there",
            turn);
}

std::vector<std::string> JobMachine::Awaited(const JobRun& run, absl::Time now) {
  std::vector<std::string> names;
  if (!run.recovers() || now >= run.broke_at() + kPatience) return names;
  for (const v1::Placement& each : run.Placement()) {
    const WorkerSlot* slot = workers_.Find(each.worker(), each.instance());
    if (slot == nullptr || slot->refuses || workers_.Closed(*slot)) continue;
    const bool ends =
        slot->state == WorkerSlot::State::kDraining ||
        (slot->state == WorkerSlot::State::kServing && slot->job_id == run.job().id());
    if (ends) names.push_back(each.worker());
  }
  return names;
}

bool JobMachine::Measures(JobRun* run, const Infos& free, Turn turn) {
  // Who recovers is in a hurry; what was measured before is known.
  if (run->generates() || run->recovers()) return false;
  const std::vector<std::string> names = profiling_.Begin(run->job(), free, &workers_, turn);
  if (names.empty()) return false;
  run->Wait(absl::StrCat("measures its layers on ", absl::StrJoin(names, ", ")), turn);
  return true;
}

void JobMachine::StartOn(const v1::Plan& plan, size_t i, Turn turn) {
  std::unique_ptr<JobRun> run = std::move(queue_[i]);
  profiling_.Forget(run->job().id(), turn);
  queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
  Infos workers;
  for (const v1::StagePlan& stage : plan.stage()) {
    WorkerSlot* slot = workers_.Find(stage.worker());
    if (slot == nullptr) {
      run->Fail(absl::StrCat("the plan names a worker that is not there: ", stage.worker()), turn);
      return;
    }
    workers.push_back(slot->info);
  }
  // The registry knows before the worker does, else a heartbeat could call the new stage stale.
  for (const v1::WorkerInfo& worker : workers) {
    workers_.Serve(workers_.Find(worker.name()), run->job().id(), run->job().generation() + 1,
                   turn.out);
  }
  run->Start(plan, workers, LivingAddresses(), turn);
  const std::string id = run->job().id();
  running_[id] = std::move(run);
}

}  // namespace headrace
