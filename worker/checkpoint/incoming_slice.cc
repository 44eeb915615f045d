#include "worker/checkpoint/incoming_slice.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/flags.h"
#include "common/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<IncomingSlice>> IncomingSlice::Begin(SliceStore* store,
                                                                    const v1::HeldSlice& slice,
                                                                    int64_t size_bytes) {
  if (!IsSha256(slice.sha256()) || size_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("a slice of ", size_bytes,
                                                   " bytes with the hash '", slice.sha256(),
                                                   "': expected one of at least a byte"));
  }
  if (!store->HasRoom(size_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for a slice of ", FormatBytes(size_bytes), " on the disk"));
  }
  std::unique_ptr<IncomingSlice> incoming(
      new IncomingSlice(store, slice, size_bytes, store->Temporary(slice.job_id(), slice.step())));
  incoming->fd_ = open(incoming->path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (incoming->fd_ < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", incoming->path_));
  }
  return incoming;
}

IncomingSlice::IncomingSlice(SliceStore* store, v1::HeldSlice slice, int64_t size_bytes,
                             std::string path)
    : store_(store), slice_(std::move(slice)), size_bytes_(size_bytes), path_(std::move(path)) {}

IncomingSlice::~IncomingSlice() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(path_.c_str());
}

absl::Status IncomingSlice::Append(std::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) > size_bytes_ - received_) {
    return absl::DataLossError(
        absl::StrCat("slice ", slice_.sha256(), " is of more than ", size_bytes_, " bytes"));
  }
  hash_->Update(bytes);
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), received_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
    bytes.remove_prefix(static_cast<size_t>(n));
    received_ += n;
  }
  return absl::OkStatus();
}

absl::Status IncomingSlice::Restart() {
  if (ftruncate(fd_, 0) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
  }
  received_ = 0;
  hash_ = std::make_unique<Sha256>();
  return absl::OkStatus();
}

absl::StatusOr<std::string> IncomingSlice::Keep(SliceOrigin origin) {
  if (received_ < size_bytes_) {
    return absl::DataLossError(absl::StrCat("slice ", slice_.sha256(), " ends after ", received_,
                                            " of ", size_bytes_, " bytes"));
  }
  if (const std::string found = hash_->Finish(); found != slice_.sha256()) {
    return absl::DataLossError(
        absl::StrCat("slice ", slice_.sha256(), " arrived with the hash ", found));
  }
  HEADRACE_RETURN_IF_ERROR(store_->Keep(path_, slice_, origin));
  close(std::exchange(fd_, -1));
  return store_->Find(slice_.sha256());
}

}  // namespace headrace
