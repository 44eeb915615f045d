#include "worker/checkpoint/shared_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr char kScheme[] = "file://";
constexpr size_t kSchemeSize = sizeof(kScheme) - 1;

constexpr int64_t kCopiedAtOnce = int64_t{8} << 20;

absl::Status Failed(const char* doing, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(doing, " ", path));
}

// All of `bytes` to the end of `fd`.
absl::Status Append(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("cannot write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status CopyInto(int fd, const std::string& to, const std::string& from,
                      const Cancellation* cancellation) {
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(from));
  const int64_t size = static_cast<int64_t>(file->data().size());
  for (int64_t at = 0; at < size; at += kCopiedAtOnce) {
    if (cancellation != nullptr && cancellation->cancelled()) {
      return absl::CancelledError("told to stop");
    }
    const int64_t end = std::min(size, at + kCopiedAtOnce);
    HEADRACE_RETURN_IF_ERROR(Append(
        fd, to, file->data().substr(static_cast<size_t>(at), static_cast<size_t>(end - at))));
    file->Release(at, end);
  }
  if (fsync(fd) != 0) return Failed("cannot sync", to);
  return absl::OkStatus();
}

// A rename is durable once its folder is.
absl::Status SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed("cannot open folder", folder);
  const absl::Cleanup closer = [fd] { close(fd); };
  if (fsync(fd) != 0) return Failed("cannot sync folder", folder);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> PathOfFolder(const std::string& uri) {
  const bool absolute =
      absl::StartsWith(uri, kScheme) && uri.size() > kSchemeSize + 1 && uri[kSchemeSize] == '/';
  if (!absolute) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint.store is '", uri, "'; expected file:///… with a whole path"));
  }
  return uri.substr(kSchemeSize);
}

absl::Status CopyToFolder(const std::string& folder_uri, const std::string& job_id, int64_t step,
                          const std::string& path, v1::WeightsSlice* slice,
                          const Cancellation* cancellation) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string root, PathOfFolder(folder_uri));
  const std::string folder = absl::StrCat(root, "/", job_id, "/", step);
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(folder));
  const std::string to = absl::StrCat(folder, "/", slice->first_layer(), "-", slice->end_layer(),
                                      "-", slice->sha256(), ".safetensors");
  // Another stage's process never writes this name: the hash is that of this slice.
  const std::string beside = absl::StrCat(to, ".", getpid(), ".tmp");
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Failed("cannot create", beside);
  absl::Cleanup remove = [&beside] { unlink(beside.c_str()); };
  absl::Status copied = CopyInto(fd, beside, path, cancellation);
  if (close(fd) != 0 && copied.ok()) copied = Failed("cannot write", beside);
  HEADRACE_RETURN_IF_ERROR(copied);
  if (rename(beside.c_str(), to.c_str()) != 0) return Failed("cannot rename to", to);
  std::move(remove).Cancel();
  HEADRACE_RETURN_IF_ERROR(SyncFolder(folder));
  slice->set_uri(absl::StrCat(kScheme, to));
  return absl::OkStatus();
}

}  // namespace headrace
