// Reads and deletes whole files, which takes long, on a thread of its own: hashes the weights of
// jobs that have finished, verifies checkpoints, looks where a damaged one's damage is, deletes
// what retention has dropped (the rows went first: store/job_store.h), and now and then what
// nothing has used for a day.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <variant>

#include "absl/time/time.h"
#include "common/bounded_queue.h"
#include "coordinator/job_messages.h"
#include "coordinator/store/store.h"

namespace headrace {

// Whether every slice is whole: complete in the blob store, or read and hashed where its URI says.
// `stop` set to true makes it end early.
//   NOT_FOUND, DATA_LOSS  names the layers, and what is wrong with their slice
//   INVALID_ARGUMENT      a slice's URI is no file
//   CANCELLED             stopped
absl::Status CheckSlices(const BlobStore& blobs, const v1::Checkpoint& checkpoint,
                         const std::atomic<bool>& stop);

// Thread-safe.
class BlobKeeper {
 public:
  static constexpr int64_t kMaxChecks = 4096;  // that wait
  static constexpr absl::Duration kSweepEvery = absl::Hours(1);

  // `tell` gets a WeightsHashed for each Hash and a CheckpointVerified for each Verify, from the
  // thread; it must not block. `store` must outlive this. What was doomed before is deleted first.
  BlobKeeper(Store* store, std::function<void(Event)> tell);
  ~BlobKeeper() { Stop(); }

  // Breaks off what is under way; nothing is told any more.
  void Stop();

  void Hash(const HashWeights& hash);
  // With too many waiting it fails at once, with RESOURCE_EXHAUSTED.
  void Verify(const VerifyCheckpoint& verify);
  // Deletes those of its blobs that are not what they are called: the step is done again, and a
  // sound slice of the same hash must find no damaged one in its place.
  void CleanUp(const v1::Checkpoint& damaged);
  // A commit has doomed something.
  void DeleteDoomed() { doomed_ = true; }

 private:
  struct Damaged {
    v1::Checkpoint checkpoint;
  };
  using Work = std::variant<HashWeights, VerifyCheckpoint, Damaged>;

  void Loop();
  void Do(const HashWeights& hash);
  void Do(const VerifyCheckpoint& verify);
  void Do(const Damaged& damaged);
  void RemoveDoomed();
  void SweepOrphans();

  Store* const store_;
  const std::function<void(Event)> tell_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> doomed_ = true;
  BoundedQueue<Work> queue_{kMaxChecks};
  std::thread thread_;
};

}  // namespace headrace
