#include "coordinator/worker_table.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr size_t kMaxLost = 10000;
constexpr size_t kMaxCordoned = 10000;

}  // namespace

WorkerSlot* WorkerTable::Join(const v1::WorkerInfo& info, bool standing) {
  WorkerSlot& slot = slots_[info.name()];
  if (slot.info.instance() == info.instance()) {
    slot.info = info;  // the same process once more: it knows its new address, we what it serves
    return &slot;
  }
  slot = WorkerSlot();
  slot.info = info;
  const auto lost = lost_.find(info.name());
  const bool is_back = lost != lost_.end() && lost->second == info.instance();
  if (is_back || standing || !info.job_id().empty()) slot.state = WorkerSlot::State::kDraining;
  return &slot;
}

void WorkerTable::Cordon(const std::string& name, bool cordoned) {
  if (!cordoned) {
    cordoned_.erase(name);
  } else if (cordoned_.size() < kMaxCordoned) {
    cordoned_.insert(name);
  }
}

void WorkerTable::Lose(const std::string& name) {
  const auto it = slots_.find(name);
  if (it == slots_.end()) return;
  if (lost_.size() >= kMaxLost) lost_.clear();  // strangers' names must not pile up
  lost_[name] = it->second.info.instance();
  slots_.erase(it);
}

WorkerSlot* WorkerTable::Find(const std::string& name, const std::string& instance) {
  WorkerSlot* slot = Find(name);
  return slot != nullptr && slot->info.instance() == instance ? slot : nullptr;
}

WorkerSlot* WorkerTable::Find(const std::string& name) {
  const auto it = slots_.find(name);
  return it == slots_.end() ? nullptr : &it->second;
}

std::vector<v1::WorkerInfo> WorkerTable::Free() const {
  std::vector<v1::WorkerInfo> free;
  for (const auto& [name, slot] : slots_) {
    if (slot.state == WorkerSlot::State::kFree && !Closed(slot)) free.push_back(slot.info);
  }
  return free;
}

std::vector<v1::WorkerInfo> WorkerTable::Open() const {
  std::vector<v1::WorkerInfo> open;
  for (const auto& [name, slot] : slots_) {
    if (!Closed(slot) && !slot.refuses) open.push_back(slot.info);
  }
  return open;
}

std::vector<v1::WorkerInfo> WorkerTable::Answering() const {
  std::vector<v1::WorkerInfo> answering;
  for (const auto& [name, slot] : slots_) {
    if (!slot.silent) answering.push_back(slot.info);
  }
  return answering;
}

std::vector<v1::WorkerInfo> WorkerTable::Living() const {
  std::vector<v1::WorkerInfo> living;
  for (const auto& [name, slot] : slots_) living.push_back(slot.info);
  return living;
}

void WorkerTable::Serve(WorkerSlot* slot, const std::string& job_id, int64_t generation,
                        Commands* out) {
  slot->state = WorkerSlot::State::kServing;
  slot->job_id = job_id;
  slot->generation = generation;
  slot->idle_since = absl::InfiniteFuture();
  out->push_back(SetServing{slot->info.name(), slot->info.instance(), job_id, generation});
}

void WorkerTable::Release(WorkerSlot* slot, const CallEnded& call, Commands* out) {
  const bool gone = call.status.ok() && !call.stop.busy();
  slot->silent = !call.status.ok();
  slot->refuses = absl::IsUnavailable(call.status);
  slot->state = gone ? WorkerSlot::State::kFree : WorkerSlot::State::kDraining;
  // Without an answer: the next one may be on its way since long ago.
  slot->stale_beat = call.status.ok() ? call.stop.last_heartbeat() : slot->last_beat + 1;
  slot->job_id.clear();
  slot->generation = 0;
  out->push_back(SetServing{slot->info.name(), slot->info.instance(), "", 0});
}

void WorkerTable::Measured(WorkerSlot* slot, bool answered) {
  if (slot->state != WorkerSlot::State::kMeasuring) return;
  slot->state = answered ? WorkerSlot::State::kFree : WorkerSlot::State::kDraining;
  if (!answered) slot->stale_beat = slot->last_beat + 1;  // the next one may be on its way
}

bool WorkerTable::Beat(WorkerSlot* slot, const WorkerBeat& beat, absl::Time now) {
  slot->last_beat = std::max(slot->last_beat, beat.number);
  slot->silent = slot->refuses = false;
  if (slot->state == WorkerSlot::State::kServing) {
    const bool serves = beat.job_id == slot->job_id;
    slot->idle_since = serves ? absl::InfiniteFuture() : std::min(slot->idle_since, now);
    return false;
  }
  if (slot->state == WorkerSlot::State::kMeasuring) return false;
  if (beat.number <= slot->stale_beat) return false;
  if (!beat.job_id.empty()) {  // it was told to stop, but is not done with it yet
    slot->state = WorkerSlot::State::kDraining;
    return false;
  }
  if (slot->state == WorkerSlot::State::kFree) return false;
  slot->state = WorkerSlot::State::kFree;
  return true;
}

}  // namespace headrace
