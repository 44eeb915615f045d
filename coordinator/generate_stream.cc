#include "coordinator/generate_stream.h"

namespace headrace {

void GenerateStream::Put(int64_t token) {
  absl::MutexLock lock(&mu_);
  if (!end_.has_value()) tokens_.push_back(token);
}

void GenerateStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (!end_.has_value()) end_ = status;
}

absl::StatusOr<std::optional<int64_t>> GenerateStream::Take(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return end_.has_value() || !tokens_.empty();
  };
  if (!mu_.AwaitWithDeadline(absl::Condition(&ready), deadline)) {
    return absl::DeadlineExceededError("no token came in time");
  }
  if (!tokens_.empty()) {
    const int64_t token = tokens_.front();
    tokens_.pop_front();
    return token;
  }
  if (!end_->ok()) return *end_;
  return std::nullopt;
}

}  // namespace headrace
