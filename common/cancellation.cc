#include "common/cancellation.h"

namespace headrace {

void Cancellation::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  // Under the lock, so that no context goes away meanwhile; TryCancel does not block or call back.
  for (grpc::ClientContext* context : calls_) context->TryCancel();
}

bool Cancellation::cancelled() const {
  absl::MutexLock lock(&mu_);
  return cancelled_;
}

bool Cancellation::Pause(absl::Duration duration) const {
  absl::MutexLock lock(&mu_);
  return !mu_.AwaitWithTimeout(absl::Condition(&cancelled_), duration);
}

Cancellation::Call::Call(Cancellation* cancellation, grpc::ClientContext* context)
    : cancellation_(cancellation), context_(context) {
  if (cancellation_ == nullptr) return;
  absl::MutexLock lock(&cancellation_->mu_);
  cancellation_->calls_.insert(context_);
  if (cancellation_->cancelled_) context_->TryCancel();
}

Cancellation::Call::~Call() {
  if (cancellation_ == nullptr) return;
  absl::MutexLock lock(&cancellation_->mu_);
  cancellation_->calls_.erase(context_);
}

}  // namespace headrace
