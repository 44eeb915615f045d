// Live updates of jobs, from the job driver to the streams that watch them. A watcher has a queue
// of bounded size: one that reads too slowly loses its stream, never the coordinator its memory.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "headrace/v1/cluster.pb.h"

namespace headrace {

// shared_ptr: one update is in the queues of all watchers of a job.
struct JobUpdate {
  std::shared_ptr<const v1::WatchJobResponse> response;
  int64_t hashes_id = 0;  // tensor hashes: the store's number
};

// One watcher's queue. Thread-safe: the hub puts, one stream's thread takes.
class Watcher {
 public:
  static constexpr int64_t kCapacityBytes = int64_t{4} << 20;

  // Next update, in order.
  //   DEADLINE_EXCEEDED   none came
  //   RESOURCE_EXHAUSTED  this watcher was too slow; updates have been dropped
  //   UNAVAILABLE         the coordinator shuts down
  absl::StatusOr<JobUpdate> Take(absl::Time deadline);

 private:
  friend class WatchHub;
  void Put(const JobUpdate& update);
  void Close();

  absl::Mutex mu_;
  std::deque<JobUpdate> updates_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool overflowed_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// Thread-safe.
class WatchHub {
 public:
  // Updates published from now on. The watcher leaves when its pointer goes away.
  std::shared_ptr<Watcher> Subscribe(const std::string& job_id);
  void Publish(const std::string& job_id, v1::WatchJobResponse response, int64_t hashes_id = 0);
  // Ends all watchers, also later ones.
  void Close();

 private:
  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  // weak_ptr: a watcher belongs to its stream.
  std::map<std::string, std::vector<std::weak_ptr<Watcher>>> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
