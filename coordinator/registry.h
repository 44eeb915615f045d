// Who is there. A worker registers under a name and keeps its lease by heartbeats; one that is
// silent for longer is lost. Nothing of this is stored: after a restart of the coordinator nobody
// is known, heartbeats get NOT_FOUND and the workers register again, each with a fresh lease.
//
// A coordinator that was itself stopped, or starved, heard nobody because it did not listen. It
// notices by a gap in its own doings (a heartbeat or an Expire comes several times a second),
// blames nobody for that time and gives all a fresh lease.
//
// A worker may come with a stage that stands: it trained on while its coordinator was away. Until
// SetServing says what becomes of that, it is neither told to end it nor believed to be free.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "headrace/v1/cluster.pb.h"
#include "headrace/v1/worker.pb.h"

namespace headrace {

struct LostWorker {
  std::string name;
  std::string instance;
  std::string reason;  // "no heartbeat for 2.1 s"
};

// Thread-safe; never blocks.
class Registry {
 public:
  static constexpr int kMaxWorkers = 4096;
  // Those that serve nothing together beat about so often, at the slowest every kLongestPause. A
  // heartbeat costs some 0.1 ms.
  static constexpr int kIdleBeatsPerSecond = 500;
  static constexpr absl::Duration kLongestPause = absl::Seconds(2);
  // An answer may be lost on its way, and saying it again does no harm.
  static constexpr int kDropAnswers = 3;

  // `clock` must outlive this.
  Registry(const Clock* clock, absl::Duration lease, absl::Duration heartbeat)
      : clock_(clock), lease_(lease), heartbeat_(heartbeat) {}

  // The same instance may register again. Returns the dead worker it replaces, if it does.
  //   ALREADY_EXISTS       a living worker has this name
  //   RESOURCE_EXHAUSTED   kMaxWorkers are there
  absl::StatusOr<std::vector<LostWorker>> Register(
      const v1::WorkerInfo& info, const std::optional<v1::StageStanding>& standing = std::nullopt);

  struct Answer {
    bool stop = false;     // the stage that the worker reports is one it must end
    absl::Duration pause;  // until its next heartbeat; its lease is as much longer
    std::vector<v1::SliceLimit> drop;
  };
  // Renews the lease.
  //   NOT_FOUND  not registered, another instance's name, or the lease has run out
  absl::StatusOr<Answer> Heartbeat(const std::string& name, const std::string& instance,
                                   const std::string& job_id, int64_t generation,
                                   bool draining = false);

  // NOT_FOUND as Heartbeat.
  absl::Status Check(const std::string& name, const std::string& instance) const;

  // What the worker serves from now on (empty: nothing). Unknown ones are ignored.
  void SetServing(const std::string& name, const std::string& instance, const std::string& job_id,
                  int64_t generation);

  // Shown by List. Unknown workers are ignored.
  void SetCordoned(const std::string& name, const std::string& instance, bool cordoned);

  // Its next kDropAnswers heartbeats are told that it need not hold slices of the job of earlier
  // steps. Unknown workers are ignored.
  void DropSlices(const std::string& name, const std::string& job_id, int64_t before_step);

  // A worker's last words: its name is free, nothing will be assigned to it.
  //   NOT_FOUND  as Heartbeat
  absl::StatusOr<LostWorker> Leave(const std::string& name, const std::string& instance);

  // Takes out those whose lease has run out. To be called several times a second.
  std::vector<LostWorker> Expire();

  // How many hold a lease.
  int64_t NumAlive() const;

  // Living ones in order of names, with job_id, seen_seconds_ago and alive filled in; cordoned are
  // those that SetCordoned says, and those that drain.
  std::vector<v1::WorkerInfo> List() const;

 private:
  struct Drop {
    int64_t before_step = 0;
    int answers = 0;  // that are still to tell it
  };
  struct Entry {
    v1::WorkerInfo info;
    int64_t generation = 0;
    absl::Time seen;
    absl::Duration pause;                       // the worker was told to beat again after it
    std::optional<v1::StageStanding> standing;  // nobody has decided about it yet
    bool draining = false;
    std::map<std::string, Drop> drops;  // by job
  };
  // A worker that says so anew, with nothing that was known of it before.
  Entry NewEntry(const v1::WorkerInfo& info,
                 const std::optional<v1::StageStanding>& standing) const;
  static bool MayServe(const Entry& entry, const std::string& job_id, int64_t generation);
  static std::vector<v1::SliceLimit> TakeDrops(Entry* entry);
  absl::Duration PauseOf(const Entry& entry) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  const Entry* Find(const std::string& name, const std::string& instance) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Stalled() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Notes that this is awake; after a stall everybody gets a fresh lease.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Expired(const Entry& entry) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return clock_->Now() - entry.seen > lease_ + (entry.pause - heartbeat_) && !Stalled();
  }
  LostWorker Lost(const Entry& entry) const;

  const Clock* const clock_;
  const absl::Duration lease_, heartbeat_;
  mutable absl::Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  absl::Time awake_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // when it last did anything
};

}  // namespace headrace
