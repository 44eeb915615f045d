// Keeps the state of one stage after the steps it is told to, while the stage trains on:
//
//   compute thread   Take: copies the state into a new file, which stays in memory until the system
//                    writes it. This is all that training waits for.
//   own thread       hashes the file ─▶ keeps it on this worker ─▶ the store (a checkpoint), or the
//                    neighbour (else), one snapshot after the other
//
// Each step on the way is reported, and so is what went wrong; training never fails by it. A
// simulated stage has no state: its snapshots are reported as if they had been written at once.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "headrace/v1/worker.pb.h"
#include "worker/checkpoint/slice_store.h"
#include "worker/checkpoint/snapshot_schedule.h"
#include "worker/checkpoint/state_slice.h"

namespace headrace {

// Where a snapshot goes from this worker's disk. Called on the snapshotter's thread; both end with
// CANCELLED soon after its cancellation.
struct SnapshotPlaces {
  std::string neighbour;  // the worker that `send` gives it to; empty: nobody
  std::function<absl::Status(int64_t step, const v1::WeightsSlice& slice, const std::string& path)>
      send;
  // Into the store, where it stays; fills in slice->uri if that is not the coordinator's.
  std::function<absl::Status(int64_t step, v1::WeightsSlice* slice, const std::string& path)> store;
};

// Both are called on either thread, one at a time for each snapshot.
struct SnapshotReports {
  std::function<void(v1::StageSnapshot snapshot)> snapshot;
  std::function<void(const std::string& line)> log;
};

// What is written, and where. All pointers must outlive the snapshotter.
struct SnapshotSource {
  std::string job_id;
  int64_t first_layer = 0, end_layer = 0;
  bool simulated = false;
  std::vector<StateTensor> state;
  ComputeDevice* device = nullptr;
  SliceStore* slices = nullptr;
  Cancellation* cancellation = nullptr;  // the stage's: whatever is under way ends with it
};

class Snapshotter {
 public:
  // So many bytes may wait to be written behind the first snapshot: small ones never wait for each
  // other.
  static constexpr int64_t kSmallBytes = int64_t{64} << 20;
  // So many may, whatever they weigh: a stage that is slower than stage 0 has some behind.
  static constexpr int kMostWaiting = 3;

  Snapshotter(SnapshotSource source, SnapshotPlaces places, SnapshotReports reports);
  // Cancels `cancellation`; what is not written yet is dropped, its files removed.
  ~Snapshotter();

  // The state as it stands is that after `step`. Compute thread; returns when it is copied.
  void Take(int64_t step, bool checkpoint);

  SnapshotProgress progress() const;

  // Waits until all checkpoints are in the store; those for the neighbour are dropped, being of no
  // use any more. The status is the last checkpoint's.
  //   DEADLINE_EXCEEDED  names the step whose checkpoint is still on its way
  //   CANCELLED          the stage was told to stop
  //   what kept the last checkpoint from the store
  absl::Status Finish(absl::Time deadline);

 private:
  struct Snapshot {
    int64_t step = 0;
    bool checkpoint = false;
    std::string path;
    int64_t bytes = 0;
    absl::Time begun, copied;
  };

  absl::Status Copy(Snapshot* snapshot);
  absl::Status CheckRoom(int64_t bytes) const;
  void Run();
  // The first in the queue, which stays there while it is at work; false: the object is going.
  bool Next(Snapshot* snapshot);
  void Done(absl::Status status);
  absl::Status Write(const Snapshot& snapshot);
  absl::Status WriteOn(const Snapshot& snapshot, v1::StageSnapshot* report,
                       const std::string& path);
  void Report(const Snapshot& snapshot, v1::StageSnapshot report);
  void ReportFailed(const Snapshot& snapshot, const absl::Status& why);
  bool drops_replicas() const;

  const SnapshotSource source_;
  const SnapshotPlaces places_;
  const SnapshotReports reports_;
  const int64_t bytes_;  // of one snapshot

  mutable absl::Mutex mu_;
  std::deque<Snapshot> queue_ ABSL_GUARDED_BY(mu_);  // the first one is at work
  absl::Duration last_copy_ ABSL_GUARDED_BY(mu_), last_write_ ABSL_GUARDED_BY(mu_);
  absl::Status last_checkpoint_ ABSL_GUARDED_BY(mu_);
  std::string last_failure_ ABSL_GUARDED_BY(mu_);  // told in the log
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace headrace
