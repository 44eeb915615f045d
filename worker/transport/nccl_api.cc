#include "worker/transport/nccl_api.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

// The function's type is its field's.
template <typename Function>
bool Find(void* library, const char* name, Function** function, std::string* missing) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  if (*function == nullptr) *missing = name;
  return *function != nullptr;
}

}  // namespace

std::string NcclVersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<NcclApi> LoadNccl(const std::string& library) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return absl::NotFoundError(absl::StrCat("no NCCL: ", dlerror()));
  NcclApi api;
  std::string missing;
  const bool found = Find(opened, "ncclGetVersion", &api.get_version, &missing) &&
                     Find(opened, "ncclGetErrorString", &api.get_error_string, &missing) &&
                     Find(opened, "ncclGetLastError", &api.get_last_error, &missing) &&
                     Find(opened, "ncclGetUniqueId", &api.get_unique_id, &missing) &&
                     Find(opened, "ncclCommInitRankConfig", &api.init_rank_config, &missing) &&
                     Find(opened, "ncclCommGetAsyncError", &api.get_async_error, &missing) &&
                     Find(opened, "ncclCommAbort", &api.abort, &missing) &&
                     Find(opened, "ncclSend", &api.send, &missing) &&
                     Find(opened, "ncclRecv", &api.receive, &missing);
  if (found && api.get_version(&api.version) == kNcclSuccess && api.version >= kOldestNccl) {
    return api;
  }
  const std::string why = !missing.empty()
                              ? absl::StrCat("has no ", missing)
                              : absl::StrCat("is of version ", NcclVersionText(api.version));
  dlclose(opened);
  return absl::FailedPreconditionError(
      absl::StrCat(library, " ", why, "; expected NCCL 2.14 or later"));
}

absl::StatusOr<const NcclApi*> LoadNccl() {
  static const absl::StatusOr<NcclApi>* const loaded = [] {
    const char* const named = std::getenv("HEADRACE_NCCL");
    return new absl::StatusOr<NcclApi>(
        LoadNccl(std::string(named != nullptr && *named != '\0' ? named : "libnccl.so.2")));
  }();
  HEADRACE_RETURN_IF_ERROR(loaded->status());
  return &**loaded;
}

}  // namespace headrace
