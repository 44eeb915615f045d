#include "coordinator/store/blob_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/status.h"

namespace headrace {
namespace {

// Left free, so that the database can still say why a job failed when blobs have filled the disk.
constexpr int64_t kReservedBytes = int64_t{64} << 20;
constexpr int64_t kReadBytes = int64_t{1} << 20;

absl::Status SystemError(const std::string& path, const char* what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

absl::Status CheckHash(const std::string& sha256) {
  if (IsSha256(sha256)) return absl::OkStatus();
  return absl::InvalidArgumentError("a blob is named by its SHA-256: 64 lower-case hex digits");
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(path, "open");
  const absl::Cleanup closer = [fd] { close(fd); };
  return fsync(fd) == 0 ? absl::OkStatus() : SystemError(path, "sync");
}

absl::Status CannotList(const std::string& folder, const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat("cannot list ", folder, ": ", error.message()));
}

// -1: no such file.
int64_t FileSize(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return -1;
  return info.st_size;
}

}  // namespace

BlobWriter::~BlobWriter() {
  close(fd_);
  store_->Release(sha256_);
}

absl::Status BlobWriter::HashWhatIsThere() {
  std::vector<char> buffer(kReadBytes);
  while (true) {
    const ssize_t n = pread(fd_, buffer.data(), buffer.size(), received_);
    if (n < 0) return SystemError(store_->PartialPath(sha256_), "read");
    if (n == 0) return absl::OkStatus();
    hash_.Update({buffer.data(), static_cast<size_t>(n)});
    received_ += n;
  }
}

absl::Status BlobWriter::Append(std::string_view data) {
  if (static_cast<int64_t>(data.size()) > size_bytes_ - received_) {
    return absl::InvalidArgumentError(absl::StrCat("more than the announced ", size_bytes_,
                                                   " bytes: ", received_, " + ", data.size()));
  }
  while (!data.empty()) {
    const ssize_t n = pwrite(fd_, data.data(), data.size(), received_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(store_->PartialPath(sha256_), "write");
    hash_.Update(data.substr(0, n));
    received_ += n;
    data.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status BlobWriter::Commit() {
  if (received_ != size_bytes_) {
    return absl::FailedPreconditionError(
        absl::StrCat("blob ", sha256_, " ended after ", received_, " of ", size_bytes_, " bytes"));
  }
  const std::string partial = store_->PartialPath(sha256_);
  const std::string whole = store_->BlobPath(sha256_);
  const std::string actual = hash_.Finish();
  if (actual != sha256_) {
    unlink(partial.c_str());
    return absl::DataLossError(
        absl::StrCat("the bytes sent as blob ", sha256_, " have the hash ", actual));
  }
  if (fsync(fd_) != 0) return SystemError(partial, "sync");
  const std::string folder = std::filesystem::path(whole).parent_path();
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(folder));
  if (rename(partial.c_str(), whole.c_str()) != 0) return SystemError(partial, "rename");
  HEADRACE_RETURN_IF_ERROR(SyncFolder(folder));
  store_->Count(size_bytes_);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BlobStore>> BlobStore::Open(const std::string& folder) {
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(folder + "/blobs"));
  HEADRACE_RETURN_IF_ERROR(MakeDirectories(folder + "/partial"));
  std::unique_ptr<BlobStore> store(new BlobStore(folder));
  HEADRACE_RETURN_IF_ERROR(store->CountBlobs());
  HEADRACE_RETURN_IF_ERROR(store->RemoveOldPartials(absl::Now()));
  return store;
}

absl::Status BlobStore::CountBlobs() {
  const std::string blobs = folder_ + "/blobs";
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(blobs, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    const int64_t size = FileSize(it->path());
    if (size > 0) Count(size);
  }
  return error ? CannotList(blobs, error) : absl::OkStatus();
}

absl::Status BlobStore::RemoveOldPartials(absl::Time now) const {
  const std::string partials = folder_ + "/partial";
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(partials, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string path = it->path();
    struct stat info {};
    // Only what this store has put there.
    if (!IsSha256(it->path().filename().string()) || lstat(path.c_str(), &info) != 0 ||
        !S_ISREG(info.st_mode) || now - absl::TimeFromTimespec(info.st_mtim) < kPartialsKept) {
      continue;
    }
    if (unlink(path.c_str()) != 0) return SystemError(path, "remove");
    LogInfo(absl::StrCat("removed ", path, ": ", info.st_size,
                         " bytes of an upload that did not go on for a week"));
  }
  return error ? CannotList(partials, error) : absl::OkStatus();
}

absl::StatusOr<BlobStat> BlobStore::Stat(const std::string& sha256) const {
  HEADRACE_RETURN_IF_ERROR(CheckHash(sha256));
  if (const int64_t size = FileSize(BlobPath(sha256)); size >= 0) return BlobStat{true, size};
  return BlobStat{false, std::max<int64_t>(0, FileSize(PartialPath(sha256)))};
}

absl::StatusOr<std::string> BlobStore::Path(const std::string& sha256) const {
  HEADRACE_ASSIGN_OR_RETURN(const BlobStat stat, Stat(sha256));
  if (stat.complete) return BlobPath(sha256);
  return absl::NotFoundError(absl::StrCat("the store has no blob ", sha256, " (", stat.size_bytes,
                                          " bytes of it have arrived)"));
}

absl::StatusOr<std::unique_ptr<BlobWriter>> BlobStore::StartUpload(const std::string& sha256,
                                                                   int64_t size_bytes,
                                                                   int64_t offset) {
  HEADRACE_RETURN_IF_ERROR(CheckHash(sha256));
  if (size_bytes < 0) return absl::InvalidArgumentError("a blob's size cannot be negative");
  {
    absl::MutexLock lock(&mu_);
    if (!uploading_.insert(sha256).second) {
      return absl::UnavailableError(
          absl::StrCat("blob ", sha256, " is being uploaded by somebody else"));
    }
  }
  absl::Cleanup release = [&] { Release(sha256); };
  HEADRACE_ASSIGN_OR_RETURN(const BlobStat stat, Stat(sha256));
  if (stat.complete) {
    HEADRACE_RETURN_IF_ERROR(Touch(sha256));
    return absl::AlreadyExistsError("the store has this blob");
  }
  if (offset != 0 && offset != stat.size_bytes) {
    return absl::OutOfRangeError(
        absl::StrCat("the store has ", stat.size_bytes, " bytes of this blob; go on there"));
  }
  if (offset > size_bytes) {
    return absl::OutOfRangeError(absl::StrCat(
        "the store has ", offset, " bytes of a blob said to have ", size_bytes, "; start at 0"));
  }
  HEADRACE_RETURN_IF_ERROR(CheckRoom(size_bytes - offset));
  const std::string path = PartialPath(sha256);
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | (offset == 0 ? O_TRUNC : 0);
  const int fd = open(path.c_str(), flags, 0644);
  if (fd < 0) return SystemError(path, "open");
  std::unique_ptr<BlobWriter> writer(new BlobWriter(this, sha256, size_bytes, fd));
  std::move(release).Cancel();  // from here on the writer releases
  HEADRACE_RETURN_IF_ERROR(writer->HashWhatIsThere());
  return writer;
}

absl::Status BlobStore::Touch(const std::string& sha256) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string path, Path(sha256));
  if (utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0) return absl::OkStatus();
  return SystemError(path, "touch");
}

absl::Status BlobStore::Remove(const std::string& sha256) {
  HEADRACE_RETURN_IF_ERROR(CheckHash(sha256));
  const std::string path = BlobPath(sha256);
  absl::MutexLock lock(&mu_);  // an upload that starts now finds the blob, or none
  if (uploading_.contains(sha256)) {
    return absl::UnavailableError(absl::StrCat("blob ", sha256, " is being uploaded"));
  }
  const int64_t size = FileSize(path);
  if (size < 0) return absl::OkStatus();
  if (unlink(path.c_str()) != 0) return SystemError(path, "remove");
  total_bytes_ -= size;
  return absl::OkStatus();
}

absl::StatusOr<bool> BlobStore::RemoveIfDamaged(const std::string& sha256,
                                                const std::atomic<bool>& stop) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string path, Path(sha256));
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(path, "open");
  const absl::Cleanup closer = [fd] { close(fd); };
  Sha256 hash;
  std::vector<char> buffer(kReadBytes);
  ssize_t n = 0;
  for (int64_t offset = 0; (n = pread(fd, buffer.data(), buffer.size(), offset)) > 0; offset += n) {
    if (stop) return absl::CancelledError("stopped");
    hash.Update({buffer.data(), static_cast<size_t>(n)});
  }
  // What cannot be read is as good as damaged.
  if (n == 0 && hash.Finish() == sha256) return false;
  HEADRACE_RETURN_IF_ERROR(Remove(sha256));
  return true;
}

absl::StatusOr<std::vector<std::string>> BlobStore::UntouchedSince(absl::Time time) const {
  std::vector<std::string> names;
  const std::string blobs = folder_ + "/blobs";
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(blobs, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    struct stat info {};
    if (!IsSha256(name) || lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode))
      continue;
    if (absl::TimeFromTimespec(info.st_mtim) < time) names.push_back(name);
  }
  if (error) return CannotList(blobs, error);
  return names;
}

int64_t BlobStore::total_bytes() const {
  absl::MutexLock lock(&mu_);
  return total_bytes_;
}

std::string BlobStore::BlobPath(const std::string& sha256) const {
  return absl::StrCat(folder_, "/blobs/", sha256.substr(0, 2), "/", sha256);
}

std::string BlobStore::PartialPath(const std::string& sha256) const {
  return absl::StrCat(folder_, "/partial/", sha256);
}

absl::Status BlobStore::CheckRoom(int64_t bytes) const {
  struct statvfs info {};
  if (statvfs(folder_.c_str(), &info) != 0) return SystemError(folder_, "ask for free space of");
  const int64_t available = static_cast<int64_t>(info.f_bavail) * info.f_frsize - kReservedBytes;
  if (bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the coordinator's disk has room for ",
                                                   std::max<int64_t>(0, available), " of ", bytes,
                                                   " bytes"));
}

void BlobStore::Release(const std::string& sha256) {
  absl::MutexLock lock(&mu_);
  uploading_.erase(sha256);
}

void BlobStore::Count(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  total_bytes_ += bytes;
}

}  // namespace headrace
