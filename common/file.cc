#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status SystemError(std::string_view what, const std::string& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat(std::string(what), " ", path));
}

absl::Status WriteAll(int fd, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError("cannot write", path, errno);
    content.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status WriteAndSync(const std::string& path, std::string_view content) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError("cannot create", path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  HEADRACE_RETURN_IF_ERROR(WriteAll(fd, path, content));
  if (fsync(fd) != 0) return SystemError("cannot sync", path, errno);
  return absl::OkStatus();
}

absl::Status SyncFolderOf(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open folder", folder, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  if (fsync(fd) != 0) return SystemError("cannot sync folder", folder, errno);
  return absl::OkStatus();
}

// The size of an open regular file.
absl::StatusOr<int64_t> SizeOf(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError("cannot read", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("cannot read ", path, ": not a file"));
  }
  return int64_t{info.st_size};
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open", path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  HEADRACE_ASSIGN_OR_RETURN(const int64_t size, SizeOf(fd, path));
  std::string content;
  content.reserve(static_cast<size_t>(size));
  // To the end rather than `size` bytes: files under /proc say 0.
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError("cannot read", path, errno);
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
  }
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view content) {
  static std::atomic<uint64_t> counter{0};
  const std::string beside = absl::StrCat(path, ".", getpid(), ".", counter.fetch_add(1), ".tmp");
  auto remover = absl::MakeCleanup([&] { unlink(beside.c_str()); });
  HEADRACE_RETURN_IF_ERROR(WriteAndSync(beside, content));
  if (rename(beside.c_str(), path.c_str()) != 0) {
    return SystemError("cannot rename to", path, errno);
  }
  std::move(remover).Cancel();
  return SyncFolderOf(path);
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return SystemError("cannot create folder", path, error.value());
  // create_directories is content with a file of that name.
  if (!std::filesystem::is_directory(path, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot create folder ", path, ": a file of that name is in the way"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open", path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  HEADRACE_ASSIGN_OR_RETURN(const int64_t size, SizeOf(fd, path));
  if (size == 0) return std::unique_ptr<MappedFile>(new MappedFile(std::string_view()));
  void* memory = mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0);
  if (memory == MAP_FAILED) return SystemError("cannot map", path, errno);
  return std::unique_ptr<MappedFile>(new MappedFile(
      std::string_view(static_cast<const char*>(memory), static_cast<size_t>(size))));
}

void MappedFile::Release(int64_t begin, int64_t end) const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t first = (std::max<int64_t>(begin, 0) + page - 1) / page * page;
  const int64_t last = std::min<int64_t>(end, static_cast<int64_t>(data_.size())) / page * page;
  if (first >= last) return;
  // Advice only.
  (void)madvise(const_cast<char*>(data_.data()) + first, static_cast<size_t>(last - first),
                MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!data_.empty()) munmap(const_cast<char*>(data_.data()), data_.size());
}

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::Acquire(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError("cannot open lock file", path, errno);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    close(fd);
    if (error == EWOULDBLOCK) {
      return absl::FailedPreconditionError(absl::StrCat(path, " is locked by another process"));
    }
    return SystemError("cannot lock", path, error);
  }
  return std::unique_ptr<FileLock>(new FileLock(fd));
}

FileLock::~FileLock() { close(fd_); }

}  // namespace headrace
