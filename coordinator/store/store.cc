#include "coordinator/store/store.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"

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

}  // namespace headrace
