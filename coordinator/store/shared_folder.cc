#include "coordinator/store/shared_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/sha256.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;

}  // namespace

absl::StatusOr<std::string> PathOfUri(const std::string& uri) {
  const std::string path(absl::StripPrefix(uri, "file://"));
  if (path.size() == uri.size() || !absl::StartsWith(path, "/") ||
      absl::StrContains(path + "/", "/../") || absl::StrContains(path, '\0')) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", uri, "\": expected file:// and an absolute path"));
  }
  return path;
}

absl::Status CheckSharedSlice(const v1::WeightsSlice& slice, const std::atomic<bool>& stop) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string path, PathOfUri(slice.uri()));
  // What is there under the name need not be a file at all: a pipe would never open.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::NotFoundError(
        absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path)).message());
  }
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != slice.size_bytes()) {
    return absl::DataLossError(absl::StrCat(path, " is no file of ", slice.size_bytes(), " bytes"));
  }
  Sha256 hash;
  std::vector<char> buffer(kPieceBytes);
  for (int64_t read = 0; read < slice.size_bytes();) {
    if (stop) return absl::CancelledError("stopped");
    const ssize_t n = pread(fd, buffer.data(), buffer.size(), read);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::DataLossError(absl::StrCat("cannot read ", path, " to its end"));
    hash.Update({buffer.data(), static_cast<size_t>(n)});
    read += n;
  }
  const std::string actual = hash.Finish();
  if (actual == slice.sha256()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, " has the hash ", actual, ", not ", slice.sha256()));
}

absl::Status RemoveSharedFile(const std::string& uri) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string path, PathOfUri(uri));
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", path));
  }
  // Fails, as it should, while anything is in them.
  const std::filesystem::path step = std::filesystem::path(path).parent_path();
  if (rmdir(step.c_str()) == 0) rmdir(step.parent_path().c_str());
  return absl::OkStatus();
}

}  // namespace headrace
