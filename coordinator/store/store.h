// Everything the coordinator keeps, in one folder:
//
//   <data-dir>/lock          held while a coordinator runs
//   <data-dir>/headrace.db   jobs (job_store.h)
//   <data-dir>/blobs, partial   data, weights and checkpoints (blob_store.h)
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/file.h"
#include "coordinator/store/blob_store.h"
#include "coordinator/store/job_store.h"

namespace headrace {

// Thread-safe, as its parts are.
class Store {
 public:
  // Creates the folder if there is none.
  //   FAILED_PRECONDITION  another coordinator uses it, or its database is not ours
  //   DATA_LOSS            the database is damaged
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& data_dir);

  // Blobs that no row has used for so long were of a job that was never submitted, or of a
  // checkpoint that never became whole.
  static constexpr absl::Duration kOrphansKept = absl::Hours(24);

  JobStore& jobs() { return *jobs_; }
  BlobStore& blobs() { return *blobs_; }

  // Deletes what `name` (JobStore::LoadDoomed) stands for, unless a row uses it again. OK: it need
  // not be doomed any longer. Waits for the disk, which a shared folder may make long.
  //   UNAVAILABLE, …  not now; it stays doomed
  absl::Status RemoveDoomed(const std::string& name);
  // Deletes blobs that nothing uses and that nobody has sent or touched for kOrphansKept. Returns
  // how many.
  absl::StatusOr<int64_t> SweepOrphans(absl::Time now);

 private:
  Store() = default;

  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<JobStore> jobs_;
  std::unique_ptr<BlobStore> blobs_;
};

}  // namespace headrace
