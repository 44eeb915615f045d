#include "coordinator/job_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "coordinator/suited_workers.h"
#include "plan/job_check.h"

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

void JobMachine::Restore(const std::vector<StoredJob>& living, absl::Time now, Commands* out) {
  const Turn turn{now, out};
  for (const StoredJob& stored : living) {
    auto run = std::make_unique<JobRun>(stored.job, stored.options);
    if (stored.job.state() == v1::JOB_STATE_QUEUED) {
      queue_.push_back(std::move(run));
      settled_at_ = now + kSettleTime;
    } else {
      run->Fail(
          absl::StrCat("coordinator restarted while the job ran (step ", stored.job.step(), ")"),
          turn);
    }
  }
  place_ = !queue_.empty();
}

void JobMachine::Handle(const Event& event, absl::Time now, Commands* out) {
  const Turn turn{now, out};
  std::visit([&](const auto& each) { On(each, turn); }, event);
  ForgetEnded();
  if (place_ && now >= settled_at_) Place(turn);
}

void JobMachine::On(const WorkerJoined& joined, Turn turn) {
  const v1::WorkerInfo& info = joined.worker;
  WorkerSlot* slot = workers_.Find(info.name());
  if (slot != nullptr && slot->info.instance() != info.instance()) {
    On(WorkerLost{info.name(), slot->info.instance(), "its process was restarted"}, turn);
  }
  workers_.Join(info);
  place_ = true;
}

void JobMachine::On(const WorkerLost& lost, Turn turn) {
  WorkerSlot* slot = workers_.Find(lost.worker, lost.instance);
  if (slot == nullptr) return;
  JobRun* run = FindRun(slot->job_id);
  workers_.Lose(lost.worker);
  Tell(profiling_.OnWorkerLost(lost.worker, lost.reason), turn);
  if (run != nullptr) run->OnWorkerLost(lost.worker, lost.reason, turn);
  place_ = true;  // the message of what waits
}

void JobMachine::On(const WorkerBeat& beat, Turn turn) {
  WorkerSlot* slot = workers_.Find(beat.worker, beat.instance);
  if (slot == nullptr) return;
  if (workers_.Beat(slot, beat, turn.now)) place_ = true;
  if (turn.now - slot->idle_since < kIdleGrace) return;
  if (JobRun* run = FindRun(slot->job_id)) run->OnWorkerIdle(beat.worker, turn);
}

void JobMachine::On(const JobSubmitted& submitted, Turn turn) {
  absl::Status status = ValidateJob(submitted.spec, &submitted.dataset);
  if (status.ok() && queue_.size() + running_.size() >= kMaxLivingJobs) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("there are ", kMaxLivingJobs, " jobs that have not ended; cancel some"));
  }
  if (!status.ok()) {
    turn.out->push_back(Reply{submitted.request, status, "", ""});
    return;
  }
  v1::Job job;
  job.set_id(absl::StrCat("j", ++last_job_number_));
  job.set_name(submitted.spec.name());
  job.set_state(v1::JOB_STATE_QUEUED);
  *job.mutable_spec() = submitted.spec;
  *job.mutable_dataset() = submitted.dataset;
  job.set_submitted_unix_s(absl::ToDoubleSeconds(turn.now - absl::UnixEpoch()));
  turn.out->push_back(SaveJob{job, submitted.options});
  const std::string id = job.id();
  queue_.push_back(std::make_unique<JobRun>(std::move(job), submitted.options));
  if (turn.now >= settled_at_) Place(turn);
  JobRun* run = FindRun(id);  // nullptr: placing it showed that it cannot run
  if (run != nullptr && run->queued() && run->job().message().empty()) {
    const JobRun* const blocker = blockers_[run->simulates()];
    const JobRun& head = blocker != nullptr ? *blocker : *queue_.front();
    run->Wait(head.generates() ? "waits behind a generate request"
                               : absl::StrCat("waits behind job ", head.job().id()),
              turn);
  }
  turn.out->push_back(
      Reply{submitted.request, absl::OkStatus(), id, run != nullptr ? run->job().message() : ""});
}

void JobMachine::On(const GenerateSubmitted& submitted, Turn turn) {
  absl::Status status;
  const std::vector<v1::WorkerInfo> living = SuitedWorkers(workers_.Living(), false);
  if (living.empty()) {
    status = absl::UnavailableError("no worker is there to generate with");
  } else if (NumGenerates() >= kMaxGenerates) {
    status = absl::ResourceExhaustedError(
        absl::StrCat(kMaxGenerates, " generate requests are under way; try again"));
  } else {
    status = plan_.generate(submitted.trained.spec(), ToPlanWorkers(living)).status();
  }
  if (!status.ok()) {
    turn.out->push_back(EndGenerate{submitted.request, status});
    return;
  }
  // Such ids must not repeat after a restart either, for a worker might still hold an old one.
  const std::string id =
      absl::StrCat("generate-", absl::ToUnixMicros(turn.now), "-", ++last_generate_);
  queue_.push_back(std::make_unique<JobRun>(id, submitted));
  place_ = true;
}

void JobMachine::On(const CancelRequested& cancel, Turn turn) {
  JobRun* run = FindRun(cancel.job_id);
  absl::Status status =
      absl::FailedPreconditionError(absl::StrCat("job ", cancel.job_id, " has ended"));
  if (run != nullptr) status = run->Cancel("cancelled by request", turn);
  if (run != nullptr && run->ended()) profiling_.Forget(cancel.job_id, turn);
  place_ = true;
  turn.out->push_back(Reply{cancel.request, status, cancel.job_id, ""});
}

void JobMachine::On(const CheckpointRequested& asked, Turn turn) {
  turn.out->push_back(Reply{asked.request, absl::UnimplementedError("checkpoint"), asked.job_id});
}

void JobMachine::On(const PauseRequested& pause, Turn turn) {
  turn.out->push_back(Reply{pause.request, absl::UnimplementedError("pause"), pause.job_id});
}

void JobMachine::On(const ResumeRequested& resume, Turn turn) {
  turn.out->push_back(Reply{resume.request, absl::UnimplementedError("resume"), resume.job_id});
}

void JobMachine::On(const CordonRequested& cordon, Turn turn) {
  turn.out->push_back(Reply{cordon.request, absl::UnimplementedError("cordon"), ""});
}

void JobMachine::On(const CheckpointVerified&, Turn) {}

void JobMachine::On(const GenerateAbandoned& abandoned, Turn turn) {
  JobRun* run = FindGenerate(abandoned.request);
  // It may be ending of itself, which is as good.
  if (run != nullptr) run->Cancel(abandoned.reason, turn).IgnoreError();
  place_ = true;
}

void JobMachine::On(const StageReported& reported, Turn turn) {
  WorkerSlot* slot = workers_.Find(reported.worker, reported.instance);
  if (slot == nullptr || reported.event.sequence() <= slot->last_sequence) return;
  slot->last_sequence = reported.event.sequence();
  JobRun* run = FindRun(reported.event.job_id());
  if (run != nullptr) run->OnReport(reported.worker, reported.event, turn);
}

void JobMachine::Tell(const std::optional<Profiling::News>& news, Turn turn) {
  if (!news) return;
  if (JobRun* run = FindRun(news->job_id)) run->Note(news->text, turn);
}

void JobMachine::On(const CallEnded& call, Turn turn) {
  if (call.kind == CallKind::kProfile) {
    Tell(profiling_.OnCallEnded(call, &workers_, turn), turn);
    place_ = true;
    return;
  }
  WorkerSlot* slot = workers_.Find(call.worker, call.instance);
  const bool serves =
      slot != nullptr && slot->job_id == call.job_id && slot->generation == call.generation;
  if (call.kind == CallKind::kStop && serves) {
    workers_.Release(slot, call, turn.out);
    place_ = true;
  }
  if (JobRun* run = FindRun(call.job_id)) run->OnCallEnded(call, turn);
}

void JobMachine::On(const WeightsHashed& hashed, Turn turn) {
  JobRun* run = FindRun(hashed.job_id);
  if (run != nullptr && run->job().generation() == hashed.generation) {
    run->OnWeightsHashed(hashed.sha256, turn);
  }
}

void JobMachine::On(const StoreFailed& failed, Turn turn) {
  for (auto& [id, run] : running_) run->OnStoreFailed(failed.status, turn);
}

void JobMachine::On(const TimePassed&, Turn turn) {
  for (auto& [id, run] : running_) run->OnTime(turn);
}

absl::StatusOr<v1::Plan> JobMachine::PlanOn(const JobRun& run,
                                            const std::vector<v1::WorkerInfo>& workers) const {
  if (run.generates()) return plan_.generate(run.job().spec(), ToPlanWorkers(workers));
  std::vector<PlanWorker> planned = ToPlanWorkers(workers);
  profiling_.FillIn(run.job().spec(), workers, &planned);
  return plan_.train(run.job().spec(), &run.job().dataset(), planned, Advice::kNone);
}

void JobMachine::Place(Turn turn) {
  place_ = false;
  blockers_ = {};
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
}

JobMachine::Placing JobMachine::PlaceAt(size_t i, Turn turn) {
  JobRun& run = *queue_[i];
  if (profiling_.UnderWay(run.job().id())) return Placing::kBlocks;
  const std::vector<v1::WorkerInfo> all_living = workers_.Living();
  const std::vector<v1::WorkerInfo> free_ones = SuitedWorkers(workers_.Free(), run.simulates());
  absl::StatusOr<v1::Plan> plan = PlanOn(run, free_ones);
  if (plan.ok() && Measures(&run, free_ones, turn)) return Placing::kBlocks;
  if (plan.ok()) {
    StartOn(*plan, i, turn);
    return Placing::kLeft;
  }
  const bool may_wait =
      absl::IsUnavailable(plan.status()) || absl::IsFailedPrecondition(plan.status());
  if (!may_wait) {
    run.Fail(std::string(plan.status().message()), turn);
    profiling_.Forget(run.job().id(), turn);
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    return Placing::kLeft;
  }
  const std::vector<v1::WorkerInfo> living_ones = SuitedWorkers(all_living, run.simulates());
  const size_t living = living_ones.size();
  const size_t free = free_ones.size();
  const std::string count = absl::StrCat(" (", free, " of ", living, " free)");
  if (free < living && PlanOn(run, living_ones).ok()) {
    run.Wait(absl::StrCat("waits for busy workers", count), turn);
    return Placing::kBlocks;
  }
  const absl::Status suited = CheckSuited(all_living, run.simulates());
  run.Wait(!suited.ok()  ? absl::StrCat("waits for workers: ", suited.message())
           : living == 0 ? std::string("waits for workers: none is there")
                         : absl::StrCat("waits for workers", count, ": ", plan.status().message()),
           turn);
  return Placing::kPassed;
}

bool JobMachine::Measures(JobRun* run, const std::vector<v1::WorkerInfo>& free, Turn turn) {
  if (run->generates()) return false;
  const std::vector<std::string> names = profiling_.Begin(run->job(), free, &workers_, turn);
  if (names.empty()) return false;
  run->Wait(absl::StrCat("measures its layers on ", absl::StrJoin(names, ", ")), turn);
  return true;
}

void JobMachine::StartOn(const v1::Plan& plan, size_t i, Turn turn) {
  std::unique_ptr<JobRun> run = std::move(queue_[i]);
  profiling_.Forget(run->job().id(), turn);
  queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
  std::vector<v1::WorkerInfo> workers;
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
  run->Start(plan, workers, turn);
  const std::string id = run->job().id();
  running_[id] = std::move(run);
}

JobRun* JobMachine::FindRun(const std::string& job_id) {
  if (const auto it = running_.find(job_id); it != running_.end()) return it->second.get();
  for (const auto& run : queue_) {
    if (run->job().id() == job_id) return run.get();
  }
  return nullptr;
}

JobRun* JobMachine::FindGenerate(int64_t request) {
  for (const auto& [id, run] : running_) {
    if (run->generates() && run->request() == request) return run.get();
  }
  for (const auto& run : queue_) {
    if (run->generates() && run->request() == request) return run.get();
  }
  return nullptr;
}

int JobMachine::NumGenerates() const {
  int count = 0;
  for (const auto& [id, run] : running_) count += run->generates();
  for (const auto& run : queue_) count += run->generates();
  return count;
}

void JobMachine::ForgetEnded() {
  for (const JobRun*& blocker : blockers_) {
    if (blocker != nullptr && blocker->ended()) blocker = nullptr;
  }
  std::erase_if(running_, [](const auto& entry) { return entry.second->ended(); });
  std::erase_if(queue_, [](const auto& run) { return run->ended(); });
}

}  // namespace headrace
