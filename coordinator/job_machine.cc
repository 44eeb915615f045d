// What happens to workers and to the jobs on them.
#include "coordinator/job_machine.h"

#include <algorithm>
#include <utility>

namespace headrace {

void JobMachine::Restore(const std::vector<StoredJob>& living, absl::Time now, Commands* out) {
  const Turn turn{now, out};
  for (const StoredJob& stored : living) {
    auto run = std::make_unique<JobRun>(stored.job, stored.options);
    const std::string id = stored.job.id();
    if (stored.job.state() != v1::JOB_STATE_QUEUED) {
      run->Restore(now + adopt_time_, turn);
    }
    if (run->queued() && !run->recovers()) {
      queue_.push_back(std::move(run));
    } else {
      running_[id] = std::move(run);
    }
  }
  SortRuns();
  if (!queue_.empty()) settled_at_ = now + kSettleTime;
  place_ = !queue_.empty();
}

void JobMachine::Handle(const Event& event, absl::Time now, Commands* out) {
  const Turn turn{now, out};
  std::visit([&](const auto& each) { On(each, turn); }, event);
  MakeMoves(turn);
  SortRuns();
  if (now >= wake_at_) place_ = true;
  if (place_ && now >= settled_at_) Place(turn);
}

void JobMachine::On(const WorkerJoined& joined, Turn turn) {
  const v1::WorkerInfo& info = joined.worker;
  WorkerSlot* slot = workers_.Find(info.name());
  if (slot != nullptr && slot->info.instance() != info.instance()) {
    On(WorkerLost{info.name(), slot->info.instance(), "its process was restarted"}, turn);
  }
  const bool is_new = workers_.Find(info.name()) == nullptr;
  slot = workers_.Join(info, joined.standing.has_value());
  if (workers_.Closed(*slot)) {
    turn.out->push_back(SetCordoned{info.name(), info.instance(), true});
  }
  for (JobRun* run : AllRuns()) {
    if (is_new) run->Forgive(info.name());
    run->OnHeld(info.name(), joined.held);
  }
  AnswerStanding(joined, turn);
  place_ = true;
}

void JobMachine::AnswerStanding(const WorkerJoined& joined, Turn turn) {
  const v1::WorkerInfo& info = joined.worker;
  WorkerSlot* slot = workers_.Find(info.name());
  bool goes_on = false;
  for (auto& [id, run] : running_) {
    if (!run->OnJoined(joined, turn)) continue;
    workers_.Serve(slot, id, run->job().generation(), turn.out);
    goes_on = true;
  }
  if (goes_on || !joined.standing.has_value()) return;
  // It serves what it was given, or what nobody wants any more.
  turn.out->push_back(SetServing{info.name(), info.instance(), slot->job_id, slot->generation});
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
  if (beat.draining && !slot->leaving) {
    slot->leaving = true;
    turn.out->push_back(SetCordoned{beat.worker, beat.instance, true});
    Vacate(beat.worker, "is about to end", turn);
    place_ = true;
  }
  JobRun* run = FindRun(slot->job_id);
  if (run == nullptr) return;
  run->OnSeen(beat.worker, turn.now);
  if (turn.now - slot->idle_since >= kIdleGrace) run->OnWorkerIdle(beat.worker, turn);
}

void JobMachine::On(const StageReported& reported, Turn turn) {
  WorkerSlot* slot = workers_.Find(reported.worker, reported.instance);
  if (slot == nullptr || reported.event.sequence() <= slot->last_sequence) return;
  slot->last_sequence = reported.event.sequence();
  JobRun* run = FindRun(reported.event.job_id());
  if (run == nullptr) return;
  run->OnSeen(reported.worker, turn.now);
  const bool ran = run->running();
  run->OnReport(reported.worker, reported.event, turn);
  if (!ran && run->running()) ConsiderMoves(turn);  // workers may have come meanwhile
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

void JobMachine::On(const CheckpointVerified& verified, Turn turn) {
  if (JobRun* run = FindRun(verified.job_id)) run->OnCheckpointVerified(verified, turn);
}

void JobMachine::On(const StoreFailed& failed, Turn turn) {
  for (auto& [id, run] : running_) run->OnStoreFailed(failed.status, turn);
}

void JobMachine::On(const TimePassed&, Turn turn) {
  for (auto& [id, run] : running_) run->OnTime(turn);
}

JobRun* JobMachine::FindRun(const std::string& job_id) {
  if (const auto it = running_.find(job_id); it != running_.end()) return it->second.get();
  if (const auto it = paused_.find(job_id); it != paused_.end()) return it->second.get();
  for (const auto& run : queue_) {
    if (run->job().id() == job_id) return run.get();
  }
  return nullptr;
}

std::vector<JobRun*> JobMachine::AllRuns() {
  std::vector<JobRun*> runs;
  for (const auto& [id, run] : running_) runs.push_back(run.get());
  for (const auto& [id, run] : paused_) runs.push_back(run.get());
  for (const auto& run : queue_) runs.push_back(run.get());
  return runs;
}

void JobMachine::SortRuns() {
  for (const JobRun*& blocker : blockers_) {
    if (blocker != nullptr && (blocker->ended() || blocker->paused())) {
      blocker = nullptr;
      place_ = true;
    }
  }
  for (auto it = queue_.begin(); it != queue_.end();) {
    if ((*it)->paused()) paused_[(*it)->job().id()] = std::move(*it);
    it = *it == nullptr || (*it)->ended() ? queue_.erase(it) : it + 1;
  }
  for (auto it = paused_.begin(); it != paused_.end();) {
    it = it->second->ended() ? paused_.erase(it) : std::next(it);
  }
  for (auto it = running_.begin(); it != running_.end();) {
    JobRun& run = *it->second;
    if (!run.queued() && !run.paused() && !run.ended()) {
      ++it;
      continue;
    }
    if (!run.queued()) moves_.erase(it->first);
    if (run.queued()) {
      // Before all others, behind those that broke before.
      const auto at = std::find_if(queue_.begin(), queue_.end(),
                                   [](const auto& other) { return !other->recovers(); });
      queue_.insert(at, std::move(it->second));
      place_ = true;
    } else if (run.paused()) {
      paused_[it->first] = std::move(it->second);
    }
    it = running_.erase(it);
  }
}

}  // namespace headrace
