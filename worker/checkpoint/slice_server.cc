#include "worker/checkpoint/slice_server.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "worker/checkpoint/incoming_slice.h"
#include "worker/checkpoint/slice_transfer.h"

namespace headrace {
namespace {

constexpr size_t kMaxPutBytes = 1 << 20;

}  // namespace

absl::StatusOr<SliceServer::Arrivals::iterator> SliceServer::Arrive(grpc::ServerContext* context) {
  absl::MutexLock lock(&mu_);
  if (arrivals_.size() >= kMaxPuts) {
    // Under the lock, so that no context goes away meanwhile; TryCancel does not block or call
    // back.
    for (const Arrival& arrival : arrivals_) {
      if (absl::Now() - arrival.last_heard > patience_) arrival.context->TryCancel();
    }
    return absl::UnavailableError(absl::StrCat(kMaxPuts, " slices are coming in already"));
  }
  return arrivals_.insert(arrivals_.end(), {context, absl::Now()});
}

void SliceServer::Heard(Arrivals::iterator arrival) {
  absl::MutexLock lock(&mu_);
  arrival->last_heard = absl::Now();
}

absl::Status SliceServer::Put(
    grpc::ServerContext* context, Reader* reader,
    const std::function<bool(const std::string& job_id, int64_t generation)>& serves) {
  if (store_ == nullptr) return absl::FailedPreconditionError("no slices are kept here");
  HEADRACE_ASSIGN_OR_RETURN(const Arrivals::iterator arrival, Arrive(context));
  const absl::Cleanup leave = [&] {
    absl::MutexLock lock(&mu_);
    arrivals_.erase(arrival);
  };
  v1::PutSliceRequest request;
  if (!reader->Read(&request)) return absl::InvalidArgumentError("no slice came");
  if (!serves(request.job_id(), request.generation())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no stage of job ", request.job_id(), ", generation ", request.generation(), " is here"));
  }
  if (request.step() < 1) return absl::InvalidArgumentError("a snapshot is of a step");
  v1::HeldSlice slice;
  slice.set_job_id(request.job_id());
  slice.set_step(request.step());
  slice.set_sha256(request.sha256());
  HEADRACE_ASSIGN_OR_RETURN(const std::unique_ptr<IncomingSlice> incoming,
                            IncomingSlice::Begin(store_, slice, request.size_bytes()));
  do {
    Heard(arrival);
    if (request.data().size() > kMaxPutBytes) {
      return absl::InvalidArgumentError("more than 1 MiB in one message");
    }
    HEADRACE_RETURN_IF_ERROR(incoming->Append(request.data()));
  } while (reader->Read(&request));
  return incoming->Keep(SliceOrigin::kNeighbour).status();
}

absl::Status SliceServer::Get(const v1::GetSliceRequest& request, Writer* writer) {
  if (store_ == nullptr) return absl::NotFoundError("no slices are kept here");
  {
    absl::MutexLock lock(&mu_);
    if (gets_ >= kMaxGets) {
      return absl::UnavailableError(absl::StrCat(kMaxGets, " slices are going out already"));
    }
    ++gets_;
  }
  const absl::Cleanup leave = [this] {
    absl::MutexLock lock(&mu_);
    --gets_;
  };
  HEADRACE_ASSIGN_OR_RETURN(const std::string path, store_->Find(request.sha256()));
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat info {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  const int64_t size = int64_t{info.st_size};
  if (request.offset() < 0 || request.offset() > size) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset ", request.offset(), " of a slice of ", size, " bytes"));
  }
  v1::GetSliceResponse response;
  std::string chunk;
  for (int64_t at = request.offset(); at < size;) {
    chunk.resize(static_cast<size_t>(std::min(kSliceChunkBytes, size - at)));
    const ssize_t n = pread(fd, chunk.data(), chunk.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    if (n == 0) return absl::DataLossError(absl::StrCat(path, " ends after ", at, " bytes"));
    response.set_size_bytes(size);
    response.set_data(chunk.data(), static_cast<size_t>(n));
    if (!writer->Write(response)) return absl::CancelledError("the peer has gone");
    at += n;
  }
  return absl::OkStatus();
}

}  // namespace headrace
