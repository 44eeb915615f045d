#include "coordinator/stream_guard.h"

#include "absl/strings/str_cat.h"

namespace headrace {

StreamGuard::Stream::~Stream() {
  absl::MutexLock lock(&guard_->mu_);
  guard_->streams_.erase(this);
}

void StreamGuard::Stream::Waits(absl::Time deadline) {
  absl::MutexLock lock(&guard_->mu_);
  deadline_ = deadline;
}

absl::StatusOr<std::unique_ptr<StreamGuard::Stream>> StreamGuard::Enter(
    grpc::ServerContext* context) {
  absl::MutexLock lock(&mu_);
  if (static_cast<int>(streams_.size()) >= max_streams_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(max_streams_, " ", what_, " streams are open; try again later"));
  }
  std::unique_ptr<Stream> stream(new Stream(this, context));
  streams_.insert(stream.get());
  return stream;
}

void StreamGuard::Sweep(absl::Time now) {
  absl::MutexLock lock(&mu_);
  // TryCancel only queues the cancellation; it does not call back into us.
  for (Stream* stream : streams_) {
    if (now > stream->deadline_) stream->context_->TryCancel();
  }
}

}  // namespace headrace
