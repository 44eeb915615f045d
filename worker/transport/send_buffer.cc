#include "worker/transport/send_buffer.h"

#include <utility>

namespace headrace {

void BuffersInFlight::Add() {
  absl::MutexLock lock(&mu_);
  ++count_;
}

void BuffersInFlight::Remove() {
  absl::MutexLock lock(&mu_);
  --count_;
}

bool BuffersInFlight::AwaitNone(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return count_ == 0; };
  return mu_.AwaitWithTimeout(absl::Condition(&none), timeout);
}

SendBuffer* SendBuffer::Create(Outgoing outgoing, std::shared_ptr<BuffersInFlight> in_flight) {
  in_flight->Add();
  return new SendBuffer(std::move(outgoing), std::move(in_flight));
}

SendBuffer::SendBuffer(Outgoing outgoing, std::shared_ptr<BuffersInFlight> in_flight)
    : outgoing_(std::move(outgoing)), in_flight_(std::move(in_flight)) {}

grpc::Slice SendBuffer::SliceOf(int64_t offset, int64_t length) {
  references_.fetch_add(1, std::memory_order_relaxed);
  return grpc::Slice(
      static_cast<char*>(outgoing_.tensor.data) + offset, static_cast<size_t>(length),
      [](void* buffer) { static_cast<SendBuffer*>(buffer)->Unref(); }, this);
}

void SendBuffer::Unref() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::shared_ptr<BuffersInFlight> in_flight = std::move(in_flight_);
  delete this;  // the slot is free before the count says so
  in_flight->Remove();
}

}  // namespace headrace
