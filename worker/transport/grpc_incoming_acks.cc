// How a stream's receiver returns credits, and the slots that go with them.
#include <utility>

#include "worker/transport/grpc_incoming_stream.h"

namespace headrace {
namespace {

// How long the last acks may take once the stream has ended.
constexpr absl::Duration kLastAcks = absl::Milliseconds(500);

// Between two looks for a free slot that is due: whoever took the last tensor still uses it.
constexpr absl::Duration kLookForSlot = absl::Milliseconds(1);
constexpr absl::Duration kLookAtDevice = absl::Microseconds(50);

}  // namespace

void GrpcIncomingStream::ReturnCredit(CreditClass credit_class) {
  const size_t i = static_cast<size_t>(credit_class);
  absl::MutexLock lock(&mu_);
  if (over_) return;  // the sender needs none any more, nor are there slots to go with it
  if (credit_class == CreditClass::kTie && pools_[i] == nullptr) return;  // not paced by us
  --held_[i];
  ++to_return_[i];
}

void GrpcIncomingStream::WriteAcks() {
  if (!AwaitHello()) context_->TryCancel();
  Grant grant;
  std::string not_shared;
  {
    absl::MutexLock lock(&mu_);
    not_shared = not_shared_;
  }
  while (NextGrant(&grant) && WriteAck(grant, std::exchange(not_shared, ""))) {
  }
  absl::MutexLock lock(&mu_);
  acks_done_ = true;
}

bool GrpcIncomingStream::AwaitHello() {
  absl::MutexLock lock(&mu_);
  const auto greeted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return credits_ > 0 || stop_; };
  if (mu_.AwaitWithTimeout(absl::Condition(&greeted), hello_timeout_)) return true;
  return agreeing_ && mu_.AwaitWithTimeout(absl::Condition(&greeted), kAgree);
}

bool GrpcIncomingStream::NextGrant(Grant* grant) {
  absl::MutexLock lock(&mu_);
  const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stop_ || to_return_ != PerClass{};
  };
  mu_.Await(absl::Condition(&due));
  *grant = TakeGrant();
  while (!stop_ && grant->empty()) {
    mu_.AwaitWithTimeout(absl::Condition(&stop_), on_device_ ? kLookAtDevice : kLookForSlot);
    *grant = TakeGrant();
  }
  return !stop_;
}

Grant GrpcIncomingStream::TakeGrant() {
  Grant grant;
  if (stop_) return grant;
  for (size_t i = 0; i < grant.credits.size(); ++i) {
    if (pools_[i] == nullptr) {
      grant.credits[i] = std::exchange(to_return_[i], 0);
    } else {
      TakeSlots(i, &grant);
    }
  }
  return grant;
}

void GrpcIncomingStream::TakeSlots(size_t i, Grant* grant) {
  std::deque<FreedSlot>& freed = freed_[i];
  while (to_return_[i] > static_cast<int64_t>(freed.size())) {
    absl::StatusOr<Slot> slot = pools_[i]->Acquire(MemoryKind::kLink);
    if (!slot.ok()) break;
    freed.push_back({*std::move(slot), on_device_ ? device_->MarkSlot() : 0});
  }
  while (!freed.empty() && (!on_device_ || device_->SlotIsFree(freed.front().mark))) {
    const int64_t offset = static_cast<const char*>(freed.front().slot.data()) - base_;
    granted_[i].emplace(offset, std::move(freed.front().slot));
    freed.pop_front();
    grant->slots[i].push_back(offset);
    ++grant->credits[i];
    --to_return_[i];
  }
}

bool GrpcIncomingStream::WriteAck(const Grant& grant, std::string not_shared) {
  v1::StreamTensorsResponse response;
  response.set_activation_credits(grant.credits[0]);
  response.set_gradient_credits(grant.credits[1]);
  response.mutable_activation_slots()->Add(grant.slots[0].begin(), grant.slots[0].end());
  response.mutable_gradient_slots()->Add(grant.slots[1].begin(), grant.slots[1].end());
  response.mutable_tie_slots()->Add(grant.slots[2].begin(), grant.slots[2].end());
  response.set_not_shared(std::move(not_shared));
  response.set_numbers_only(numbers_only_);
  return Write(response);
}

bool GrpcIncomingStream::Write(const v1::StreamTensorsResponse& response) {
  const grpc::Slice slice(response.SerializeAsString());
  return stream_->Write(grpc::ByteBuffer(&slice, 1));
}

void GrpcIncomingStream::DropSlots() {
  absl::MutexLock lock(&mu_);
  over_ = true;
  pools_ = {};
  base_ = nullptr;
  on_device_ = false;
  to_return_ = {};
  for (auto& slots : freed_) slots.clear();
  for (auto& slots : granted_) slots.clear();
}

void GrpcIncomingStream::StopAcks() {
  absl::MutexLock lock(&mu_);
  stop_ = true;
  const auto done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return acks_done_; };
  // A peer that reads nothing can hold an ack back; it gets no status then.
  if (!mu_.AwaitWithTimeout(absl::Condition(&done), kLastAcks)) context_->TryCancel();
}

}  // namespace headrace
