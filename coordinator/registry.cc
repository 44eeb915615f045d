#include "coordinator/registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"

namespace headrace {
namespace {

absl::Status Unknown(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("worker ", name, " is not registered"));
}

}  // namespace

Registry::Entry Registry::NewEntry(const v1::WorkerInfo& info,
                                   const std::optional<v1::StageStanding>& standing) const {
  Entry entry;
  entry.info = info;
  entry.info.clear_job_id();
  entry.info.clear_cordoned();
  entry.seen = clock_->Now();
  entry.pause = heartbeat_;
  entry.standing = standing;
  return entry;
}

absl::StatusOr<std::vector<LostWorker>> Registry::Register(
    const v1::WorkerInfo& info, const std::optional<v1::StageStanding>& standing) {
  std::vector<LostWorker> replaced;
  absl::MutexLock lock(&mu_);
  Wake();
  const auto it = entries_.find(info.name());
  if (it == entries_.end()) {
    if (entries_.size() >= kMaxWorkers) {
      return absl::ResourceExhaustedError(absl::StrCat(kMaxWorkers, " workers are registered"));
    }
    entries_[info.name()] = NewEntry(info, standing);
    return replaced;
  }
  Entry& entry = it->second;
  if (entry.info.instance() == info.instance()) {
    Entry again = NewEntry(info, standing);
    again.info.set_job_id(entry.info.job_id());
    again.info.set_cordoned(entry.info.cordoned());
    again.generation = entry.generation;
    again.draining = entry.draining;
    again.drops = std::move(entry.drops);
    entry = std::move(again);
    return replaced;
  }
  if (!Expired(entry)) {
    return absl::AlreadyExistsError(absl::StrCat("a living worker is called ", info.name(),
                                                 " already (", entry.info.address(),
                                                 "); choose another --name"));
  }
  replaced.push_back(Lost(entry));
  entry = NewEntry(info, standing);
  return replaced;
}

bool Registry::MayServe(const Entry& entry, const std::string& job_id, int64_t generation) {
  if (job_id == entry.info.job_id() && generation == entry.generation) return true;
  return entry.standing.has_value() && job_id == entry.standing->job_id() &&
         generation == entry.standing->generation();
}

std::vector<v1::SliceLimit> Registry::TakeDrops(Entry* entry) {
  std::vector<v1::SliceLimit> limits;
  for (auto& [job_id, drop] : entry->drops) {
    v1::SliceLimit& limit = limits.emplace_back();
    limit.set_job_id(job_id);
    limit.set_before_step(drop.before_step);
    --drop.answers;
  }
  std::erase_if(entry->drops, [](const auto& each) { return each.second.answers == 0; });
  return limits;
}

absl::Duration Registry::PauseOf(const Entry& entry) const {
  if (!entry.info.job_id().empty()) return heartbeat_;
  const absl::Duration fair = absl::Seconds(1) * entries_.size() / kIdleBeatsPerSecond;
  return std::max(heartbeat_, std::min(fair, kLongestPause));
}

absl::StatusOr<Registry::Answer> Registry::Heartbeat(const std::string& name,
                                                     const std::string& instance,
                                                     const std::string& job_id, int64_t generation,
                                                     bool draining) {
  absl::MutexLock lock(&mu_);
  Wake();
  const auto it = entries_.find(name);
  if (it == entries_.end() || it->second.info.instance() != instance || Expired(it->second)) {
    return Unknown(name);
  }
  Entry& entry = it->second;
  entry.seen = clock_->Now();
  // One that serves a stage still, or what it must end, is to say so when it no longer does.
  entry.pause = job_id.empty() ? PauseOf(entry) : heartbeat_;
  entry.draining = draining;
  const bool stop = !job_id.empty() && !MayServe(entry, job_id, generation);
  return Answer{stop, entry.pause, TakeDrops(&entry)};
}

absl::StatusOr<LostWorker> Registry::Leave(const std::string& name, const std::string& instance) {
  absl::MutexLock lock(&mu_);
  if (Find(name, instance) == nullptr) return Unknown(name);
  entries_.erase(name);
  return LostWorker{name, instance, "its process was told to end"};
}

bool Registry::Stalled() const { return clock_->Now() - awake_ > lease_ / 2; }

void Registry::Wake() {
  const absl::Time now = clock_->Now();
  if (Stalled()) {
    LogWarning(
        absl::StrFormat("did nothing for %.1f s (stopped, or starved?): all workers get a "
                        "fresh lease",
                        absl::ToDoubleSeconds(now - awake_)));
    for (auto& [name, entry] : entries_) entry.seen = now;
  }
  awake_ = now;
}

absl::Status Registry::Check(const std::string& name, const std::string& instance) const {
  absl::MutexLock lock(&mu_);
  return Find(name, instance) != nullptr ? absl::OkStatus() : Unknown(name);
}

void Registry::SetServing(const std::string& name, const std::string& instance,
                          const std::string& job_id, int64_t generation) {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(name);
  if (it == entries_.end() || it->second.info.instance() != instance) return;
  it->second.info.set_job_id(job_id);
  it->second.generation = generation;
  it->second.standing.reset();
}

void Registry::SetCordoned(const std::string& name, const std::string& instance, bool cordoned) {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(name);
  if (it == entries_.end() || it->second.info.instance() != instance) return;
  it->second.info.set_cordoned(cordoned);
}

void Registry::DropSlices(const std::string& name, const std::string& job_id, int64_t before_step) {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(name);
  if (it == entries_.end()) return;
  it->second.drops[job_id] = Drop{before_step, kDropAnswers};
}

std::vector<LostWorker> Registry::Expire() {
  std::vector<LostWorker> lost;
  absl::MutexLock lock(&mu_);
  Wake();
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!Expired(it->second)) {
      ++it;
      continue;
    }
    lost.push_back(Lost(it->second));
    it = entries_.erase(it);
  }
  return lost;
}

int64_t Registry::NumAlive() const {
  absl::MutexLock lock(&mu_);
  int64_t alive = 0;
  for (const auto& [name, entry] : entries_) alive += !Expired(entry);
  return alive;
}

std::vector<v1::WorkerInfo> Registry::List() const {
  std::vector<v1::WorkerInfo> workers;
  absl::MutexLock lock(&mu_);
  for (const auto& [name, entry] : entries_) {
    if (Expired(entry)) continue;
    v1::WorkerInfo& info = workers.emplace_back(entry.info);
    info.set_seen_seconds_ago(absl::ToDoubleSeconds(clock_->Now() - entry.seen));
    info.set_alive(true);
    info.set_cordoned(info.cordoned() || entry.draining);
  }
  return workers;
}

const Registry::Entry* Registry::Find(const std::string& name, const std::string& instance) const {
  const auto it = entries_.find(name);
  if (it == entries_.end() || it->second.info.instance() != instance) return nullptr;
  return &it->second;
}

LostWorker Registry::Lost(const Entry& entry) const {
  const double silent_s = absl::ToDoubleSeconds(clock_->Now() - entry.seen);
  return LostWorker{entry.info.name(), entry.info.instance(),
                    absl::StrFormat("no heartbeat for %.1f s", silent_s)};
}

}  // namespace headrace
