// Everything the coordinator keeps, in one folder:
//
//   <data-dir>/lock          held while a coordinator runs
//   <data-dir>/headrace.db   jobs (job_store.h)
//   <data-dir>/blobs, partial   data and weights (blob_store.h)
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
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

  JobStore& jobs() { return *jobs_; }
  BlobStore& blobs() { return *blobs_; }

 private:
  Store() = default;

  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<JobStore> jobs_;
  std::unique_ptr<BlobStore> blobs_;
};

}  // namespace headrace
