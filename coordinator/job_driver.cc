#include "coordinator/job_driver.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "common/fault_point.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/job_view.h"

namespace headrace {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kStoreRetry = absl::Milliseconds(500);
constexpr absl::Duration kFlushTime = absl::Milliseconds(500);
constexpr int64_t kMailboxBytes = int64_t{64} << 20;  // of news from workers

template <typename... Types, typename Variant>
bool IsOneOf(const Variant& variant) {
  return (std::holds_alternative<Types>(variant) || ...);
}

bool IsRow(const Command& command) {
  return IsOneOf<SaveJob, SaveStep, SaveEvent, SaveHashes, SaveLayerCost, SaveCheckpoint,
                 DropCheckpoints>(command);
}

// Must not be told before it is saved. A new stage: after a crash its generation would be given to
// another one.
bool FollowsRows(const Command& command) { return IsOneOf<Reply, AssignCall, SetServing>(command); }

bool FromClient(const Event& event) {
  return IsOneOf<JobSubmitted, GenerateSubmitted, CancelRequested, CheckpointRequested,
                 PauseRequested, ResumeRequested, CordonRequested, GenerateAbandoned>(event);
}

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
  driver->keeper_ = std::make_unique<BlobKeeper>(
      driver->parts_.store,
      [raw = driver.get()](Event event) { raw->PostInternal(std::move(event)); });
  driver->thread_ = std::thread([raw = driver.get()] { raw->Loop(); });
  return driver;
}

JobDriver::JobDriver(Parts parts, PlanFunctions plan, int64_t last_job_number)
    : parts_(std::move(parts)),
      calls_(std::make_unique<StageCalls>(
          [this](CallEnded ended) { PostInternal(std::move(ended)); })),
      machine_(std::move(plan), last_job_number, parts_.adopt_time) {}

void JobDriver::Stop() {
  stopping_ = true;
  {
    absl::MutexLock lock(&mu_);  // wakes whoever waits under it
    for (auto& [request, caller] : callers_) {
      caller.done = true;
      caller.status = ShuttingDown();
    }
    for (auto& [request, stream] : generates_) stream->End(ShuttingDown());
  }
  if (thread_.joinable()) thread_.join();
  if (keeper_ != nullptr) keeper_->Stop();
  calls_.reset();
}

absl::Status JobDriver::Post(Event event, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return ShuttingDown();
  if (mailbox_bytes_ + bytes > kMailboxBytes) {
    return absl::ResourceExhaustedError("the coordinator is behind with reports; send it again");
  }
  const auto* const beat = std::get_if<WorkerBeat>(&event);
  urgent_ |= beat == nullptr || beat->draining;
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
  return TakeMailbox();
}

std::vector<Event> JobDriver::TakeMailbox() {
  std::vector<Event> events(std::make_move_iterator(mailbox_.begin()),
                            std::make_move_iterator(mailbox_.end()));
  mailbox_.clear();
  mailbox_bytes_ = 0;
  urgent_ = false;
  return events;
}

void JobDriver::Loop() {
  Carry();  // what Restore decided
  while (true) {
    std::vector<Event> events = TakeEvents();
    if (stopping_) {
      Flush(std::move(events));
      return;
    }
    if (const absl::Time now = absl::Now(); now - swept_ >= kTick || now < swept_) {
      swept_ = now;
      Sweep();
    }
    Work(std::move(events));
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

void JobDriver::Work(std::vector<Event> events) {
  for (Event& event : events) {
    if (Prepare(&event)) Feed(event);
  }
  Feed(TimePassed{});
  Carry();
}

// What workers were told has arrived is kept; nobody is told anything any more.
void JobDriver::Flush(std::vector<Event> events) {
  {
    absl::MutexLock lock(&mu_);
    for (Event& event : TakeMailbox()) events.push_back(std::move(event));
  }
  const absl::Time deadline = absl::Now() + kFlushTime;
  for (Event& event : events) {
    if (absl::Now() > deadline) break;
    if (!FromClient(event) && Prepare(&event)) Feed(event);
  }
  for (Command& command : std::exchange(commands_, {})) {
    waiting_.push_back(Pending{std::move(command)});
  }
  store_state_.retry = absl::InfinitePast();
  const absl::Status saved = SaveAll();
  if (!saved.ok()) LogError("cannot save what came last: " + std::string(saved.message()));
}

bool JobDriver::Prepare(Event* event) {
  // A worker that has expired between its registration and now was reported lost already.
  if (const auto* joined = std::get_if<WorkerJoined>(event)) {
    const v1::WorkerInfo& info = joined->worker;
    if (!parts_.registry->Check(info.name(), info.instance()).ok()) return false;
    calls_->Know(info.name(), info.instance(), info.address());
  }
  if (const auto* left = std::get_if<WorkerLost>(event)) {
    calls_->Forget(left->worker, left->instance);
  }
  if (const auto* report = std::get_if<StageReported>(event);
      report != nullptr && report->event.has_snapshot()) {
    parts_.metrics->AddSnapshot(report->event.snapshot());
  }
  const absl::Status loaded = LoadForMachine(event);
  if (loaded.ok()) return true;
  const auto* submitted = std::get_if<JobSubmitted>(event);
  const auto* resume = std::get_if<ResumeRequested>(event);
  commands_.push_back(Reply{submitted != nullptr ? submitted->request : resume->request, loaded});
  return false;
}

// On this thread, for then nothing changes or deletes it before the machine has it.
absl::Status JobDriver::LoadForMachine(Event* event) {
  JobStore& jobs = parts_.store->jobs();
  if (auto* submitted = std::get_if<JobSubmitted>(event); submitted != nullptr && submitted->from) {
    HEADRACE_ASSIGN_OR_RETURN(submitted->from, jobs.LoadToGoOn(submitted->from->job.id()));
  }
  if (auto* resume = std::get_if<ResumeRequested>(event)) {
    HEADRACE_ASSIGN_OR_RETURN(resume->stored, jobs.LoadToGoOn(resume->job_id));
  }
  return absl::OkStatus();
}

void JobDriver::Feed(const Event& event) {
  machine_.Handle(event, parts_.clock->Now(), &commands_);
}

void JobDriver::Carry() {
  for (Command& command : std::exchange(commands_, {})) {
    if (auto* keep = std::get_if<KeepTrace>(&command)) {
      // At once: the job's end, which takes the trace to the store, may be right behind.
      parts_.traces->Add(keep->job_id, keep->stage, std::move(keep->trace));
    } else {
      waiting_.push_back(Pending{std::move(command)});
    }
  }
  const absl::Status saved = SaveAll();
  if (!saved.ok()) {
    CarryWithoutStore(saved);
    return;
  }
  if (!store_state_.status.ok()) LogInfo("jobs can be saved again");
  store_state_ = {};
  for (const Pending& pending : std::exchange(waiting_, {})) {
    Publish(pending);
    Act(pending.command);
  }
}

void JobDriver::CarryWithoutStore(const absl::Status& status) {
  const absl::Time now = parts_.clock->Now();
  if (store_state_.status.ok()) {
    LogError("cannot save jobs, trying again: " + std::string(status.message()));
    store_state_.since = now;
  }
  store_state_.status = status;
  std::deque<Pending> waiting;
  std::set<std::string> assigned;  // a worker's stop must not overtake the stage it stops
  for (Pending& pending : std::exchange(waiting_, {})) {
    const auto* assign = std::get_if<AssignCall>(&pending.command);
    const auto* stop = std::get_if<StopCall>(&pending.command);
    if (assign != nullptr) assigned.insert(assign->worker);
    if (IsRow(pending.command) || FollowsRows(pending.command) ||
        (stop != nullptr && assigned.contains(stop->worker))) {
      waiting.push_back(std::move(pending));
    } else {
      Act(pending.command);
    }
  }
  waiting_ = std::move(waiting);
  if (store_state_.told) return;
  if (now - store_state_.since < parts_.store_patience && waiting_.size() < kMaxWaiting) return;
  // Running jobs end; what they were is saved as soon as the store takes it.
  store_state_.told = true;
  LogError("cannot save jobs: " + std::string(status.message()));
  Feed(StoreFailed{status});
  Carry();
}

absl::Status JobDriver::SaveAll() {
  const bool rows = std::any_of(waiting_.begin(), waiting_.end(),
                                [](const Pending& pending) { return IsRow(pending.command); });
  if (!rows) return absl::OkStatus();
  const absl::Time now = absl::Now();
  if (now < store_state_.retry) return store_state_.status;
  store_state_.retry = now + kStoreRetry;
  JobStore& jobs = parts_.store->jobs();
  HEADRACE_RETURN_IF_ERROR(jobs.Begin());
  absl::Cleanup rollback = [&] { jobs.Rollback(); };
  for (Pending& pending : waiting_) HEADRACE_RETURN_IF_ERROR(SaveOne(&pending));
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
  if (const auto* checkpoint = std::get_if<SaveCheckpoint>(&pending->command)) {
    HEADRACE_RETURN_IF_ERROR(jobs.SaveCheckpoint(checkpoint->job_id, checkpoint->checkpoint));
    return FaultPoint("commit");
  }
  if (const auto* drop = std::get_if<DropCheckpoints>(&pending->command)) {
    return jobs.DropCheckpoints(drop->job_id, drop->steps);
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
    TrimForWatcher(response.mutable_job());
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
  } else if (const auto* saved = std::get_if<SaveCheckpoint>(&pending.command)) {
    parts_.metrics->AddCheckpoint(saved->job_id, saved->checkpoint);
    if (!saved->checkpoint.damaged().empty()) keeper_->CleanUp(saved->checkpoint);
    keeper_->DeleteDoomed();
  } else if (std::holds_alternative<DropCheckpoints>(pending.command)) {
    keeper_->DeleteDoomed();
  } else if (const auto* reply = std::get_if<Reply>(&pending.command)) {
    absl::MutexLock lock(&mu_);
    const auto it = callers_.find(reply->request);
    if (it == callers_.end()) return;  // it did not wait so long
    it->second = Caller{true, reply->status, {reply->job_id, reply->message, reply->step}};
  }
}

void JobDriver::Act(const Command& command) {
  if (const auto* assign = std::get_if<AssignCall>(&command)) {
    calls_->Assign(*assign);
  } else if (const auto* start = std::get_if<StartCall>(&command)) {
    calls_->Start(*start);
  } else if (const auto* stop = std::get_if<StopCall>(&command)) {
    calls_->Stop(*stop);
  } else if (const auto* control = std::get_if<ControlCall>(&command)) {
    calls_->Control(*control);
  } else if (const auto* profile = std::get_if<ProfileCall>(&command)) {
    calls_->Profile(*profile);
  } else if (const auto* cancel = std::get_if<CancelProfile>(&command)) {
    calls_->CancelProfile(*cancel);
  } else if (const auto* serving = std::get_if<SetServing>(&command)) {
    parts_.registry->SetServing(serving->worker, serving->instance, serving->job_id,
                                serving->generation);
  } else if (const auto* cordoned = std::get_if<SetCordoned>(&command)) {
    parts_.registry->SetCordoned(cordoned->worker, cordoned->instance, cordoned->cordoned);
  } else if (const auto* drop = std::get_if<DropSlices>(&command)) {
    for (const std::string& worker : drop->workers) {
      parts_.registry->DropSlices(worker, drop->job_id, drop->before_step);
    }
  } else if (const auto* hash = std::get_if<HashWeights>(&command)) {
    keeper_->Hash(*hash);
  } else if (const auto* verify = std::get_if<VerifyCheckpoint>(&command)) {
    keeper_->Verify(*verify);
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

}  // namespace headrace
