#include "coordinator/job_driver.h"

#include <type_traits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/weights_hash.h"

namespace headrace {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr int64_t kMailboxBytes = int64_t{64} << 20;  // of news from workers

// These wait for the store; all other commands do not.
bool WaitsForStore(const Command& command) {
  return std::visit(
      [](const auto& each) {
        using C = std::decay_t<decltype(each)>;
        return std::is_same_v<C, SaveJob> || std::is_same_v<C, SaveStep> ||
               std::is_same_v<C, SaveEvent> || std::is_same_v<C, SaveHashes> ||
               std::is_same_v<C, SaveLayerCost> || std::is_same_v<C, Reply>;
      },
      command);
}

absl::Status ShutsDown() { return absl::UnavailableError("the coordinator shuts down"); }

}  // namespace

absl::StatusOr<std::unique_ptr<JobDriver>> JobDriver::Start(Parts parts, PlanFunctions plan) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t last, parts.store->jobs().LastJobNumber());
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<StoredJob> living, parts.store->jobs().LoadLiving());
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<StoredLayerCost> costs,
                            parts.store->jobs().LoadLayerCosts());
  std::unique_ptr<JobDriver> driver(new JobDriver(std::move(parts), std::move(plan), last));
  for (const StoredJob& stored : living) driver->parts_.metrics->SetJob(stored.job);
  driver->machine_.KnowCosts(costs);
  driver->machine_.Restore(living, driver->parts_.clock->Now(), &driver->commands_);
  driver->thread_ = std::thread([raw = driver.get()] { raw->Loop(); });
  driver->hasher_ = std::thread([raw = driver.get()] { raw->HashLoop(); });
  return driver;
}

JobDriver::JobDriver(Parts parts, PlanFunctions plan, int64_t last_job_number)
    : parts_(std::move(parts)),
      calls_(std::make_unique<StageCalls>(
          [this](CallEnded ended) { PostInternal(std::move(ended)); })),
      machine_(std::move(plan), last_job_number) {}

void JobDriver::Stop() {
  stopping_ = true;
  to_hash_.Close();
  {
    absl::MutexLock lock(&mu_);  // wakes whoever waits under it
    for (auto& [request, caller] : callers_) {
      caller.done = true;
      caller.status = ShutsDown();
    }
    for (auto& [request, stream] : generates_) stream->End(ShutsDown());
  }
  if (thread_.joinable()) thread_.join();
  if (hasher_.joinable()) hasher_.join();
  calls_.reset();
}

int64_t JobDriver::NewCaller() {
  absl::MutexLock lock(&mu_);
  callers_[++last_request_] = Caller();
  return last_request_;
}

absl::StatusOr<JobDriver::Submitted> JobDriver::Await(int64_t request, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  Caller& caller = callers_[request];
  const auto done = [&] { return caller.done || stopping_; };
  const bool answered = mu_.AwaitWithDeadline(absl::Condition(&done), deadline);
  const Caller result = caller;
  callers_.erase(request);
  if (!answered) {
    return absl::DeadlineExceededError("the coordinator could not save the request in time");
  }
  if (!result.done) return ShutsDown();
  if (!result.status.ok()) return result.status;
  return result.submitted;
}

absl::StatusOr<JobDriver::Submitted> JobDriver::Submit(const v1::SubmitJobRequest& request,
                                                       absl::Time deadline) {
  const int64_t number = NewCaller();
  PostInternal(JobSubmitted{number, request.spec(), request.dataset(), request.options()});
  return Await(number, deadline);
}

absl::Status JobDriver::Cancel(const std::string& job_id, absl::Time deadline) {
  const int64_t number = NewCaller();
  PostInternal(CancelRequested{number, job_id});
  return Await(number, deadline).status();
}

std::shared_ptr<GenerateStream> JobDriver::Generate(const v1::GenerateRequest& request,
                                                    const v1::Job& trained) {
  std::shared_ptr<GenerateStream> stream;
  {
    absl::MutexLock lock(&mu_);
    stream = std::make_shared<GenerateStream>(++last_request_);
    generates_[stream->request()] = stream;
    if (stopping_) stream->End(ShutsDown());
  }
  PostInternal(GenerateSubmitted{stream->request(), request, trained});
  return stream;
}

void JobDriver::Abandon(const GenerateStream& stream, const std::string& reason) {
  {
    absl::MutexLock lock(&mu_);
    generates_.erase(stream.request());
  }
  PostInternal(GenerateAbandoned{stream.request(), reason});
}

absl::Status JobDriver::Post(Event event, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (mailbox_bytes_ + bytes > kMailboxBytes) {
    return absl::ResourceExhaustedError("the coordinator is behind with reports; send it again");
  }
  urgent_ |= !std::holds_alternative<WorkerBeat>(event);
  mailbox_.push_back(std::move(event));
  mailbox_bytes_ += bytes;
  return absl::OkStatus();
}

// One for each call or request under way, all of which are bounded elsewhere.
void JobDriver::PostInternal(Event event) {
  absl::MutexLock lock(&mu_);
  urgent_ = true;
  mailbox_.push_back(std::move(event));
}

std::vector<Event> JobDriver::TakeEvents() {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || urgent_; };
  mu_.AwaitWithTimeout(absl::Condition(&ready), kTick);
  std::vector<Event> events(std::make_move_iterator(mailbox_.begin()),
                            std::make_move_iterator(mailbox_.end()));
  mailbox_.clear();
  mailbox_bytes_ = 0;
  urgent_ = false;
  return events;
}

void JobDriver::Loop() {
  Carry();  // what Restore decided
  while (!stopping_) {
    const std::vector<Event> events = TakeEvents();
    if (stopping_) return;
    if (const absl::Time now = absl::Now(); now - swept_ >= kTick || now < swept_) {
      swept_ = now;
      Sweep();
    }
    Work(events);
  }
}

void JobDriver::Sweep() {
  for (const LostWorker& worker : parts_.registry->Expire()) {
    LogWarning("worker " + worker.name + " lost: " + worker.reason);
    calls_->Forget(worker.name, worker.instance);
    Feed(WorkerLost{worker.name, worker.instance, worker.reason});
  }
  for (StreamGuard* guard : parts_.guards) guard->Sweep(parts_.clock->Now());
  parts_.metrics->SetWorkersAlive(parts_.registry->NumAlive());
  parts_.metrics->SetBlobBytes(parts_.store->blobs().total_bytes());
}

void JobDriver::Work(const std::vector<Event>& events) {
  for (const Event& event : events) {
    // A worker that has expired between its registration and now was reported lost already.
    if (const auto* joined = std::get_if<WorkerJoined>(&event)) {
      const v1::WorkerInfo& info = joined->worker;
      if (!parts_.registry->Check(info.name(), info.instance()).ok()) continue;
    }
    if (const auto* left = std::get_if<WorkerLost>(&event)) {
      calls_->Forget(left->worker, left->instance);
    }
    Feed(event);
  }
  Feed(TimePassed{});
  Carry();
}

void JobDriver::Feed(const Event& event) {
  machine_.Handle(event, parts_.clock->Now(), &commands_);
}

void JobDriver::Carry() {
  Commands commands = std::exchange(commands_, {});
  Commands at_once;
  for (Command& command : commands) {
    if (auto* keep = std::get_if<KeepTrace>(&command)) {
      // At once: the job's end, which takes the trace to the store, may be right behind.
      parts_.traces->Add(keep->job_id, keep->stage, std::move(keep->trace));
    } else if (WaitsForStore(command)) {
      unsaved_.push_back(Pending{std::move(command)});
    } else {
      at_once.push_back(std::move(command));
    }
  }
  const absl::Status saved = SaveAll();
  if (saved.ok()) {
    for (const Pending& pending : unsaved_) Publish(pending);
    unsaved_.clear();
    store_broken_ = false;
  }
  for (const Command& command : at_once) Act(command);
  if (saved.ok() || store_broken_) return;
  // Running jobs end; what they were is saved as soon as the store takes it.
  store_broken_ = true;
  LogError("cannot save jobs: " + std::string(saved.message()));
  Feed(StoreFailed{saved});
  Carry();
}

absl::Status JobDriver::SaveAll() {
  if (unsaved_.empty()) return absl::OkStatus();
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_RETURN_IF_ERROR(jobs.Begin());
  absl::Cleanup rollback = [&] { jobs.Rollback(); };
  for (Pending& pending : unsaved_) HEADRACE_RETURN_IF_ERROR(SaveOne(&pending));
  HEADRACE_RETURN_IF_ERROR(jobs.Commit());
  std::move(rollback).Cancel();
  return absl::OkStatus();
}

absl::Status JobDriver::SaveOne(Pending* pending) {
  JobStore& jobs = parts_.store->jobs();
  if (const auto* job = std::get_if<SaveJob>(&pending->command)) {
    return SaveJobAndTrace(*job);
  }
  if (const auto* step = std::get_if<SaveStep>(&pending->command)) {
    return jobs.SaveStep(step->job_id, step->step);
  }
  if (auto* event = std::get_if<SaveEvent>(&pending->command)) {
    return jobs.SaveEvent(event->job_id, &event->event);
  }
  if (const auto* hashes = std::get_if<SaveHashes>(&pending->command)) {
    HEADRACE_ASSIGN_OR_RETURN(pending->row, jobs.SaveHashes(hashes->job_id, hashes->hashes));
  }
  if (const auto* cost = std::get_if<SaveLayerCost>(&pending->command)) {
    return jobs.SaveLayerCost(cost->cost);
  }
  return absl::OkStatus();
}

absl::Status JobDriver::SaveJobAndTrace(const SaveJob& save) {
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_RETURN_IF_ERROR(jobs.SaveJob(save.job, save.options));
  if (!HasEnded(save.job.state())) return absl::OkStatus();
  const std::optional<v1::JobTrace> trace = parts_.traces->Find(save.job.id());
  return trace ? jobs.SaveTrace(save.job.id(), *trace) : absl::OkStatus();
}

void JobDriver::Publish(const Pending& pending) {
  v1::WatchJobResponse response;
  if (const auto* save = std::get_if<SaveJob>(&pending.command)) {
    parts_.metrics->SetJob(save->job);
    if (HasEnded(save->job.state())) parts_.traces->Forget(save->job.id());
    *response.mutable_job() = save->job;
    response.mutable_job()->clear_flight_records();
    parts_.hub->Publish(save->job.id(), std::move(response));
  } else if (const auto* step = std::get_if<SaveStep>(&pending.command)) {
    parts_.metrics->AddStep(step->job_id, step->step);
    *response.mutable_step() = step->step;
    parts_.hub->Publish(step->job_id, std::move(response));
  } else if (const auto* event = std::get_if<SaveEvent>(&pending.command)) {
    LogInfo("job " + event->job_id + ": " + event->event.source() + ": " + event->event.text());
    *response.mutable_event() = event->event;
    parts_.hub->Publish(event->job_id, std::move(response));
  } else if (const auto* hashes = std::get_if<SaveHashes>(&pending.command)) {
    *response.mutable_tensor_hashes() = hashes->hashes;
    parts_.hub->Publish(hashes->job_id, std::move(response), pending.row);
  } else if (const auto* reply = std::get_if<Reply>(&pending.command)) {
    absl::MutexLock lock(&mu_);
    const auto it = callers_.find(reply->request);
    if (it == callers_.end()) return;  // it did not wait so long
    it->second = Caller{true, reply->status, {reply->job_id, reply->message}};
  }
}

void JobDriver::Act(const Command& command) {
  if (const auto* assign = std::get_if<AssignCall>(&command)) {
    calls_->Assign(*assign);
  } else if (const auto* start = std::get_if<StartCall>(&command)) {
    calls_->Start(*start);
  } else if (const auto* stop = std::get_if<StopCall>(&command)) {
    calls_->Stop(*stop);
  } else if (const auto* profile = std::get_if<ProfileCall>(&command)) {
    calls_->Profile(*profile);
  } else if (const auto* cancel = std::get_if<CancelProfile>(&command)) {
    calls_->CancelProfile(*cancel);
  } else if (const auto* serving = std::get_if<SetServing>(&command)) {
    parts_.registry->SetServing(serving->worker, serving->instance, serving->job_id,
                                serving->generation);
  } else if (const auto* hash = std::get_if<HashWeights>(&command)) {
    // Never full: it holds one for each living job. Closed: shutting down.
    to_hash_.Push(*hash, 1, absl::InfinitePast()).IgnoreError();
  } else if (const auto* token = std::get_if<EmitToken>(&command)) {
    absl::MutexLock lock(&mu_);
    const auto it = generates_.find(token->request);
    if (it != generates_.end()) it->second->Put(token->token);
  } else if (const auto* end = std::get_if<EndGenerate>(&command)) {
    absl::MutexLock lock(&mu_);
    const auto it = generates_.find(end->request);
    if (it == generates_.end()) return;
    it->second->End(end->status);
    generates_.erase(it);
  }
}

void JobDriver::HashLoop() {
  while (true) {
    absl::StatusOr<HashWeights> next = to_hash_.Pop(absl::InfiniteFuture());
    if (!next.ok() || stopping_) return;
    PostInternal(WeightsHashed{next->job_id, next->generation,
                               HashWeightsSlices(parts_.store->blobs(), next->slices, stopping_)});
  }
}

}  // namespace headrace
