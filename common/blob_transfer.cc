#include "common/blob_transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/sha256.h"
#include "common/status.h"

namespace headrace {
namespace {

using Stub = v1::CoordinatorService::StubInterface;

// A message is in memory three times over on its way out.
constexpr int64_t kChunkBytes = 256 << 10;
// Of a file being sent, what was sent is kept in memory up to this much.
constexpr int64_t kKeptBytes = 1 << 20;
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr absl::Duration kStatTime = absl::Seconds(5);

// Worth another try: the connection, the coordinator's process or this one's turn, not the request.
bool IsTransient(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kOutOfRange:
      return true;
    default:
      return false;
  }
}

// Calls `attempt` until it succeeds, fails for good or `deadline` passes. `progress` says how many
// bytes have arrived: while that grows, pauses stay short.
template <typename Attempt, typename Progress>
absl::Status RetryUntil(absl::Time deadline, Cancellation* cancellation, const Attempt& attempt,
                        const Progress& progress) {
  absl::Duration pause = kFirstPause;
  int64_t before = progress();
  while (true) {
    const absl::Status status = attempt();
    if (cancellation != nullptr && cancellation->cancelled()) {
      return absl::CancelledError("told to stop");
    }
    if (status.ok() || !IsTransient(status)) return status;
    if (progress() > before) pause = kFirstPause;
    before = progress();
    if (absl::Now() + pause >= deadline) return status;
    if (cancellation == nullptr) {
      absl::SleepFor(pause);
    } else {
      cancellation->Pause(pause);
    }
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::StatusOr<v1::StatBlobResponse> Stat(Stub* stub, const std::string& sha256,
                                          absl::Time deadline, Cancellation* cancellation) {
  grpc::ClientContext context;
  const Cancellation::Call call(cancellation, &context);
  context.set_deadline(absl::ToChronoTime(std::min(deadline, absl::Now() + kStatTime)));
  v1::StatBlobRequest request;
  request.set_sha256(sha256);
  v1::StatBlobResponse response;
  HEADRACE_RETURN_IF_ERROR(FromGrpc(stub->StatBlob(&context, request, &response)));
  return response;
}

// Streams what the store lacks. `*sent` is where the store's part ended.
absl::Status UploadRest(Stub* stub, const MappedFile& file, const std::string& sha256,
                        absl::Time deadline, Cancellation* cancellation,
                        const TransferProgress& progress, int64_t* sent) {
  HEADRACE_ASSIGN_OR_RETURN(const v1::StatBlobResponse stat,
                            Stat(stub, sha256, deadline, cancellation));
  if (stat.complete()) return absl::OkStatus();
  const std::string_view data = file.data();
  const int64_t size = static_cast<int64_t>(data.size());
  if (stat.size_bytes() < 0 || stat.size_bytes() > size) {
    return absl::FailedPreconditionError(absl::StrCat("the store holds ", stat.size_bytes(),
                                                      " bytes of a blob of ", size, " bytes"));
  }
  *sent = stat.size_bytes();
  grpc::ClientContext context;
  const Cancellation::Call call(cancellation, &context);
  context.set_deadline(absl::ToChronoTime(deadline));
  v1::UploadBlobResponse response;
  const auto writer = stub->UploadBlob(&context, &response);
  int64_t offset = stat.size_bytes();
  v1::UploadBlobRequest request;
  request.set_sha256(sha256);
  request.set_size_bytes(size);
  do {
    const std::string_view chunk = data.substr(static_cast<size_t>(offset), kChunkBytes);
    request.set_offset(offset);
    request.set_data(chunk.data(), chunk.size());
    // A failed write's reason is in Finish.
    if (!writer->Write(request)) break;
    request.clear_sha256();
    request.clear_size_bytes();
    offset += static_cast<int64_t>(chunk.size());
    if (offset % kKeptBytes < kChunkBytes) file.Release(*sent, offset);
    if (progress) progress(offset, size);
  } while (offset < size);
  writer->WritesDone();
  return FromGrpc(writer->Finish());
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// The part of a blob that has arrived, hashed as far as it goes. One process at a time writes it.
class PartFile {
 public:
  explicit PartFile(std::string path) : path_(std::move(path)) {}
  ~PartFile() {
    if (fd_ >= 0) close(fd_);
  }

  // ABORTED: another process is at it.
  absl::Status Open() {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path_));
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(std::exchange(fd_, -1));
      return absl::AbortedError(absl::StrCat(path_, " is being written by another process"));
    }
    return HashWhatIsThere();
  }

  absl::Status Append(std::string_view bytes) {
    hash_->Update(bytes);
    while (!bytes.empty()) {
      const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), size_);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return NoSpaceOr(errno);
      bytes.remove_prefix(static_cast<size_t>(n));
      size_ += n;
    }
    return absl::OkStatus();
  }

  // Moves the file to `path` if its hash is `sha256`; else empties it.
  absl::Status Commit(const std::string& sha256, const std::string& path) {
    const std::string found = hash_->Finish();
    if (found != sha256) {
      HEADRACE_RETURN_IF_ERROR(Clear());
      return absl::DataLossError(absl::StrCat("blob ", sha256, " arrived with the hash ", found));
    }
    if (fsync(fd_) != 0) return NoSpaceOr(errno);
    if (rename(path_.c_str(), path.c_str()) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot rename to ", path));
    }
    return absl::OkStatus();
  }

  absl::Status Clear() {
    if (ftruncate(fd_, 0) != 0) return NoSpaceOr(errno);
    size_ = 0;
    hash_ = std::make_unique<Sha256>();
    return absl::OkStatus();
  }

  void Remove() { unlink(path_.c_str()); }
  bool is_open() const { return fd_ >= 0; }
  int64_t size() const { return size_; }

 private:
  absl::Status NoSpaceOr(int error) const {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path_));
  }

  absl::Status HashWhatIsThere() {
    hash_ = std::make_unique<Sha256>();
    size_ = 0;
    HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path_));
    hash_->Update(file->data());
    size_ = static_cast<int64_t>(file->data().size());
    return absl::OkStatus();
  }

  const std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  std::unique_ptr<Sha256> hash_;
};

// Streams from where `part` ends to the end of the blob.
absl::Status DownloadRest(Stub* stub, const std::string& sha256, absl::Time deadline,
                          Cancellation* cancellation, PartFile* part) {
  grpc::ClientContext context;
  const Cancellation::Call call(cancellation, &context);
  context.set_deadline(absl::ToChronoTime(deadline));
  v1::DownloadBlobRequest request;
  request.set_sha256(sha256);
  request.set_offset(part->size());
  const auto reader = stub->DownloadBlob(&context, request);
  v1::DownloadBlobResponse response;
  int64_t size = -1;
  absl::Status written;
  while (written.ok() && reader->Read(&response)) {
    size = response.size_bytes();
    written = part->Append(response.data());
  }
  if (!written.ok()) context.TryCancel();
  const absl::Status status = FromGrpc(reader->Finish());
  HEADRACE_RETURN_IF_ERROR(written);
  HEADRACE_RETURN_IF_ERROR(status);
  if (size >= 0 && part->size() < size) {
    return absl::UnavailableError(
        absl::StrCat("the stream ended after ", part->size(), " of ", size, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status DownloadAndCommit(Stub* stub, const std::string& sha256, const std::string& path,
                               absl::Time deadline, Cancellation* cancellation, PartFile* part) {
  if (!part->is_open()) HEADRACE_RETURN_IF_ERROR(part->Open());
  if (Exists(path)) {  // another process finished it meanwhile
    part->Remove();
    return absl::OkStatus();
  }
  HEADRACE_RETURN_IF_ERROR(DownloadRest(stub, sha256, deadline, cancellation, part));
  return part->Commit(sha256, path);
}

}  // namespace

absl::Status UploadBlob(Stub* stub, const std::string& path, const std::string& sha256,
                        absl::Time deadline, Cancellation* cancellation,
                        const TransferProgress& progress) {
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  int64_t sent = 0;
  const absl::Status status = RetryUntil(
      deadline, cancellation,
      [&] { return UploadRest(stub, *file, sha256, deadline, cancellation, progress, &sent); },
      [&] { return sent; });
  return Annotate(status, absl::StrCat("upload of ", path));
}

absl::Status DownloadBlob(Stub* stub, const std::string& sha256, const std::string& path,
                          absl::Time deadline, Cancellation* cancellation) {
  if (Exists(path)) return absl::OkStatus();
  PartFile part(absl::StrCat(path, ".part"));
  const auto attempt = [&] {
    return DownloadAndCommit(stub, sha256, path, deadline, cancellation, &part);
  };
  const auto progress = [&] { return part.size(); };
  absl::Status status = RetryUntil(deadline, cancellation, attempt, progress);
  // A part left by an earlier process may have been damaged; from the start it must be right.
  if (absl::IsDataLoss(status)) status = RetryUntil(deadline, cancellation, attempt, progress);
  return Annotate(status, absl::StrCat("download of blob ", sha256));
}

}  // namespace headrace
