#include "coordinator/store/store.h"

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/sha256.h"
#include "common/status.h"
#include "coordinator/store/shared_folder.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& data_dir) {
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(data_dir));
  std::unique_ptr<Store> store(new Store);
  auto lock = FileLock::Acquire(data_dir + "/lock");
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("another coordinator uses ", data_dir, " (", lock.status().message(), ")"));
  }
  if (!lock.ok()) return lock.status();
  store->lock_ = *std::move(lock);
  HEADRACE_ASSIGN_OR_RETURN(store->jobs_, JobStore::Open(data_dir + "/headrace.db"));
  HEADRACE_ASSIGN_OR_RETURN(store->blobs_, BlobStore::Open(data_dir));
  return store;
}

absl::Status Store::RemoveDoomed(const std::string& name) {
  HEADRACE_ASSIGN_OR_RETURN(const bool used, jobs_->IsUsed(name));
  if (used) return absl::OkStatus();
  return IsSha256(name) ? blobs_->Remove(name) : RemoveSharedFile(name);
}

absl::StatusOr<int64_t> Store::SweepOrphans(absl::Time now) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> old,
                            blobs_->UntouchedSince(now - kOrphansKept));
  int64_t removed = 0;
  for (const std::string& sha256 : old) {
    HEADRACE_ASSIGN_OR_RETURN(const bool used, jobs_->IsUsed(sha256));
    if (used) continue;
    HEADRACE_RETURN_IF_ERROR(blobs_->Remove(sha256));
    ++removed;
  }
  if (removed > 0) LogInfo(absl::StrCat("removed ", removed, " blobs that nothing refers to"));
  return removed;
}

}  // namespace headrace
