#include "coordinator/watch_hub.h"

#include <utility>

namespace headrace {

absl::StatusOr<JobUpdate> Watcher::Take(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || overflowed_ || !updates_.empty();
  };
  if (!mu_.AwaitWithDeadline(absl::Condition(&ready), deadline)) {
    return absl::DeadlineExceededError("no update");
  }
  if (overflowed_) {
    return absl::ResourceExhaustedError(
        "this watcher reads too slowly; watch again after the last step and event it has seen");
  }
  if (updates_.empty()) return absl::UnavailableError("the coordinator shuts down");
  JobUpdate update = std::move(updates_.front());
  updates_.pop_front();
  bytes_ -= static_cast<int64_t>(update.response->ByteSizeLong());
  return update;
}

void Watcher::Put(const JobUpdate& update) {
  const int64_t bytes = static_cast<int64_t>(update.response->ByteSizeLong());
  absl::MutexLock lock(&mu_);
  if (overflowed_ || closed_) return;
  if (!updates_.empty() && bytes_ + bytes > kCapacityBytes) {
    overflowed_ = true;
    updates_.clear();
    return;
  }
  updates_.push_back(update);
  bytes_ += bytes;
}

void Watcher::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

std::shared_ptr<Watcher> WatchHub::Subscribe(const std::string& job_id) {
  auto watcher = std::make_shared<Watcher>();
  absl::MutexLock lock(&mu_);
  if (closed_) watcher->Close();
  auto& list = watchers_[job_id];
  std::erase_if(list, [](const std::weak_ptr<Watcher>& each) { return each.expired(); });
  list.push_back(watcher);
  return watcher;
}

void WatchHub::Publish(const std::string& job_id, v1::WatchJobResponse response,
                       int64_t hashes_id) {
  std::vector<std::shared_ptr<Watcher>> living;
  {
    absl::MutexLock lock(&mu_);
    const auto it = watchers_.find(job_id);
    if (it == watchers_.end()) return;
    for (const auto& each : it->second) {
      if (auto watcher = each.lock()) living.push_back(std::move(watcher));
    }
    if (living.empty()) {
      watchers_.erase(it);
      return;
    }
  }
  JobUpdate update;
  update.response = std::make_shared<const v1::WatchJobResponse>(std::move(response));
  update.hashes_id = hashes_id;
  for (const auto& watcher : living) watcher->Put(update);
}

void WatchHub::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  for (const auto& [job_id, list] : watchers_) {
    for (const auto& each : list) {
      if (auto watcher = each.lock()) watcher->Close();
    }
  }
}

}  // namespace headrace
