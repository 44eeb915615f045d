// The slices that lie on this worker's disk: snapshots of its own stages, those a neighbour gave it
// to keep, and what it fetched to go on from. They outlive the process: whoever opens the folder
// next finds them. A file's name says what it is,
//
//   <job>.<step>.<own|kept>.<sha256>.safetensors
//
// and nothing but its hash says that it is whole (a machine that lost power may have lost pages):
// who reads one checks that. Names ending in .tmp are of files in the making.
//
// Of a job the slices of the last 3 steps that were kept stay, own ones and a neighbour's apart,
// until Drop says otherwise. "Last" goes by when they came and not by step: a job that went back
// counts from an earlier step again.
//
// Thread-safe. Touches the disk under its lock, but for names only: never the content of a file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/file.h"
#include "headrace/v1/worker.pb.h"

namespace headrace {

// Whose state a slice is of.
enum class SliceOrigin { kOwn, kNeighbour };

class SliceStore {
 public:
  static constexpr int kKeptSteps = 3;
  // What must be left of the disk for others.
  static constexpr int64_t kReservedBytes = int64_t{16} << 20;

  // Opens `folder`/0, or the first of /1, /2, … that no other living process has open: workers of
  // one machine may share a data folder. Removes files in the making and slices older than a day.
  //   FAILED_PRECONDITION  64 processes have one open
  //   the system's error   names the path
  static absl::StatusOr<std::unique_ptr<SliceStore>> Open(const std::string& folder);

  // A path to write a slice to, in an existing folder, another with each call. Whoever asked
  // removes it if it does not come to Keep.
  std::string Temporary(const std::string& job_id, int64_t step);

  // Takes the file at `temporary` over as this slice, whose hash the caller has seen to. Not
  // synced. Drops the slices of steps that are more than kKeptSteps back.
  //   INVALID_ARGUMENT    the job's id, the step or the hash is none
  //   the system's error  names the path; the file is where it was
  absl::Status Keep(const std::string& temporary, const v1::HeldSlice& slice,
                    SliceOrigin origin = SliceOrigin::kOwn);

  // Where a slice with this hash lies. It may be dropped at any time; an open file stays readable.
  //   NOT_FOUND
  absl::StatusOr<std::string> Find(const std::string& sha256);

  // Each slice once, the last kept first.
  std::vector<v1::HeldSlice> Held() const;
  int64_t HeldBytes() const;

  // Deletes the job's slices of earlier steps.
  void Drop(const std::string& job_id, int64_t before_step);
  // Deletes every copy of one that turned out to be damaged.
  void Discard(const std::string& sha256);

  // Whether the disk takes so much and leaves kReservedBytes. May be wrong a moment later.
  bool HasRoom(int64_t bytes) const;

 private:
  struct Entry {
    v1::HeldSlice slice;
    SliceOrigin origin = SliceOrigin::kOwn;
    int64_t bytes = 0;
    uint64_t order = 0;  // ascending as they were kept
  };

  SliceStore(std::string folder, std::unique_ptr<FileLock> lock);
  absl::Status Load();
  void Remember(const std::string& name, Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropBack(const Entry& newest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Deletes all files that `unwanted` says.
  template <typename Unwanted>
  void Remove(const Unwanted& unwanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string PathOf(const std::string& name) const;

  const std::string folder_;
  const std::unique_ptr<FileLock> lock_;
  mutable absl::Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);  // by file name
  uint64_t last_order_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_temporary_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace headrace
