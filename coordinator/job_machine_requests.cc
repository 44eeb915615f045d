// What people ask for.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/job_machine.h"
#include "coordinator/job_origin.h"
#include "coordinator/suited_workers.h"
#include "plan/job_check.h"

namespace headrace {
absl::Status JobMachine::CheckLiving() const {
  if (queue_.size() + running_.size() + paused_.size() < kMaxLivingJobs) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("there are ", kMaxLivingJobs, " jobs that have not ended; cancel some"));
}

void JobMachine::On(const JobSubmitted& submitted, Turn turn) {
  Reply reply{submitted.request};
  reply.status = ValidateJob(submitted.spec, &submitted.dataset);
  if (reply.status.ok()) reply.status = CheckLiving();
  v1::Checkpoint from;
  if (reply.status.ok() && submitted.from.has_value()) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = submitted.spec;
    *request.mutable_options() = submitted.options;
    request.set_from_step(submitted.from_step);
    absl::StatusOr<v1::Checkpoint> found = CheckOrigin(request, *submitted.from);
    reply.status = found.status();
    if (found.ok()) from = *std::move(found);
  }
  if (!reply.status.ok()) {
    turn.out->push_back(std::move(reply));
    return;
  }
  v1::Job job;
  job.set_id(absl::StrCat("j", ++last_job_number_));
  job.set_name(submitted.spec.name());
  job.set_state(v1::JOB_STATE_QUEUED);
  *job.mutable_spec() = submitted.spec;
  *job.mutable_dataset() = submitted.dataset;
  job.set_submitted_unix_s(UnixSeconds(turn.now));
  if (submitted.from.has_value()) {
    from.set_generation(0);
    job.set_from_job(submitted.from->job.id());
    job.set_from_step(from.step());
    job.set_step(from.step());
    *job.add_checkpoints() = from;
    for (const v1::StepResult& step : submitted.from->job.steps()) {
      if (step.step() <= from.step()) *job.add_steps() = step;
    }
  }
  reply.job_id = job.id();
  reply.step = job.step();
  auto run = std::make_unique<JobRun>(std::move(job), submitted.options);
  turn.out->push_back(SaveJob{run->job(), submitted.options});
  if (submitted.from.has_value()) {
    turn.out->push_back(SaveCheckpoint{run->job().id(), from});
    run->Note(absl::StrCat("begins from the checkpoint of step ", from.step(), " of job ",
                           run->job().from_job()),
              turn);
  }
  Enqueue(std::move(run), &reply, turn);
  turn.out->push_back(std::move(reply));
}

void JobMachine::Enqueue(std::unique_ptr<JobRun> queued, Reply* reply, Turn turn) {
  const std::string id = queued->job().id();
  queue_.push_back(std::move(queued));
  if (turn.now >= settled_at_) Place(turn);
  JobRun* run = FindRun(id);  // nullptr: placing it showed that it cannot run
  if (run == nullptr) return;
  const JobRun* const blocker = blockers_[run->simulates()];
  if (run->queued() && run->job().message().empty()) {
    const JobRun& head = blocker != nullptr ? *blocker : *queue_.front();
    run->Wait(head.generates() ? "waits behind a generate request"
                               : absl::StrCat("waits behind job ", head.job().id()),
              turn);
  }
  reply->message = run->job().message();
}

void JobMachine::On(const GenerateSubmitted& submitted, Turn turn) {
  absl::Status status;
  const Infos living = SuitedWorkers(workers_.Open(), false);
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
  Reply reply{asked.request, absl::OkStatus(), asked.job_id};
  JobRun* run = FindRun(asked.job_id);
  if (run == nullptr || run->generates()) {
    reply.status = absl::FailedPreconditionError(absl::StrCat("job ", asked.job_id, " has ended"));
  } else {
    reply.status = run->Checkpoint(turn);
    reply.step = run->job().step();
  }
  turn.out->push_back(std::move(reply));
}

void JobMachine::On(const PauseRequested& pause, Turn turn) {
  Reply reply{pause.request, absl::OkStatus(), pause.job_id};
  JobRun* run = FindRun(pause.job_id);
  if (run == nullptr || run->generates()) {
    reply.status = absl::FailedPreconditionError(absl::StrCat("job ", pause.job_id, " has ended"));
  } else {
    reply.status = run->Pause(turn);
    if (run->paused()) profiling_.Forget(pause.job_id, turn);
  }
  place_ = true;
  turn.out->push_back(std::move(reply));
}

void JobMachine::On(const ResumeRequested& resume, Turn turn) {
  Reply reply{resume.request, absl::OkStatus(), resume.job_id};
  JobRun* run = FindRun(resume.job_id);
  std::unique_ptr<JobRun> queued;
  if (run != nullptr && !run->generates()) {
    const bool was_paused = run->paused();
    reply.status = run->Resume(turn);
    if (was_paused && reply.status.ok()) {
      queued = std::move(paused_.extract(resume.job_id).mapped());
    }
  } else {
    absl::StatusOr<std::unique_ptr<JobRun>> again = ResumeEnded(resume.stored, turn);
    reply.status = again.status();
    if (again.ok()) queued = *std::move(again);
  }
  if (reply.status.ok()) {
    const JobRun& resumed = queued != nullptr ? *queued : *run;
    reply.step = resumed.PointStep(LivingAddresses());
  }
  if (queued != nullptr) Enqueue(std::move(queued), &reply, turn);
  turn.out->push_back(std::move(reply));
}

absl::StatusOr<std::unique_ptr<JobRun>> JobMachine::ResumeEnded(const StoredJob& stored,
                                                                Turn turn) {
  v1::Job job = stored.job;
  if (job.state() != v1::JOB_STATE_FAILED && job.state() != v1::JOB_STATE_CANCELLED) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " is ", ShortName(job.state()),
                     ": only a paused, failed or cancelled job can be resumed"));
  }
  if (absl::Status status = CheckLiving(); !status.ok()) return status;
  job.set_state(v1::JOB_STATE_QUEUED);
  job.clear_message();
  job.clear_ended_unix_s();
  job.clear_weights();
  job.clear_weights_step();
  job.clear_weights_sha256();
  job.clear_peak_memory();
  job.clear_links();
  job.clear_flight_records();
  job.clear_placement();
  auto run = std::make_unique<JobRun>(std::move(job), stored.options);
  turn.out->push_back(SaveJob{run->job(), stored.options});
  run->Note("resumed", turn);
  return run;
}

void JobMachine::On(const CordonRequested& cordon, Turn turn) {
  Reply reply{cordon.request};
  const WorkerSlot* slot = workers_.Find(cordon.worker);
  if (slot == nullptr) {
    reply.status = absl::NotFoundError(absl::StrCat("no living worker is named ", cordon.worker));
  } else {
    workers_.Cordon(cordon.worker, cordon.cordoned || cordon.drain);
    turn.out->push_back(SetCordoned{cordon.worker, slot->info.instance(), workers_.Closed(*slot)});
    if (cordon.drain) reply.job_id = Vacate(cordon.worker, "is to be drained", turn);
    place_ = true;
  }
  turn.out->push_back(std::move(reply));
}

std::string JobMachine::Vacate(const std::string& worker, const std::string& why, Turn turn) {
  JobRun* run = FindRun(workers_.Find(worker)->job_id);
  if (run == nullptr || run->generates()) return "";
  run->Leave(absl::StrCat("worker ", worker, " ", why), turn);
  return run->leaves() ? run->job().id() : "";
}

void JobMachine::On(const GenerateAbandoned& abandoned, Turn turn) {
  JobRun* run = FindGenerate(abandoned.request);
  // It may be ending of itself, which is as good.
  if (run != nullptr) run->Cancel(abandoned.reason, turn).IgnoreError();
  place_ = true;
}

JobRun* JobMachine::FindGenerate(int64_t request) {
  for (JobRun* run : AllRuns()) {
    if (run->generates() && run->request() == request) return run;
  }
  return nullptr;
}

int JobMachine::NumGenerates() {
  int count = 0;
  for (const JobRun* run : AllRuns()) count += run->generates();
  return count;
}

}  // namespace headrace
