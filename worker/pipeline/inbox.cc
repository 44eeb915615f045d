#include "worker/pipeline/inbox.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "common/steady_clock.h"

namespace headrace {
namespace {

const char* TypeName(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kFloat64:
      return "float64";
    case ElementType::kBfloat16:
      return "bfloat16";
  }
  return "unknown";
}

std::string Describe(ElementType type, const std::vector<int64_t>& shape) {
  return absl::StrCat(TypeName(type), " [", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

Inbox::Inbox(Expect expect, Pace pace) : expect_(std::move(expect)), pace_(std::move(pace)) {}

absl::StatusOr<Expectation> Inbox::CheckExpected(const Tag& tag, ElementType type,
                                                 const std::vector<int64_t>& shape) {
  HEADRACE_ASSIGN_OR_RETURN(const Expectation expected, expect_(tag));
  if (type != expected.type || shape != expected.shape) {
    return absl::InvalidArgumentError(absl::StrCat(ToText(tag), ": ", Describe(type, shape),
                                                   " arrived, expected ",
                                                   Describe(expected.type, expected.shape)));
  }
  {
    absl::MutexLock lock(&mu_);
    HEADRACE_RETURN_IF_ERROR(CheckWanted(tag));
    if (expected.pool == nullptr && inline_waiting_ >= kMaxInlineWaiting) {
      return absl::ResourceExhaustedError(absl::StrCat(ToText(tag), ": ", kMaxInlineWaiting,
                                                       " small tensors wait already to be taken"));
    }
  }
  const int64_t bytes = Tensor{nullptr, type, shape}.bytes();
  if (expected.pool != nullptr && bytes > expected.pool->slot_bytes()) {
    return absl::InternalError(absl::StrCat(
        ToText(tag), ": ", bytes, " bytes planned, but slots of ", expected.pool->slot_bytes()));
  }
  return expected;
}

absl::StatusOr<Received> Inbox::Prepare(const Tag& tag, ElementType type,
                                        const std::vector<int64_t>& shape) {
  HEADRACE_ASSIGN_OR_RETURN(const Expectation expected, CheckExpected(tag, type, shape));
  Received received;
  received.began_ns = SteadyNanos();
  received.tag = tag;
  received.tensor.type = type;
  received.tensor.shape = shape;
  if (expected.pool == nullptr) {
    received.inline_bytes.resize(static_cast<size_t>(received.tensor.bytes()));
    received.tensor.data = received.inline_bytes.data();
    return received;
  }
  absl::StatusOr<Slot> slot = expected.pool->Acquire(MemoryKind::kLink);
  if (!slot.ok()) return Annotate(slot.status(), ToText(tag));
  received.slot = std::move(slot).value();
  received.tensor.data = received.slot.data();
  if (expected.staging == nullptr) return received;
  absl::StatusOr<Slot> staged = expected.staging->Acquire(MemoryKind::kLink);
  if (!staged.ok()) return Annotate(staged.status(), ToText(tag));
  received.staged = std::move(staged).value();
  received.tensor.data = received.staged.data();
  return received;
}

absl::StatusOr<Received> Inbox::Prepare(const Tag& tag, ElementType type,
                                        const std::vector<int64_t>& shape, Slot slot) {
  HEADRACE_ASSIGN_OR_RETURN(const Expectation expected, CheckExpected(tag, type, shape));
  const bool in_place = expected.pool != nullptr && expected.pool == slot.pool();
  const bool is_staged = expected.staging != nullptr && expected.staging == slot.pool();
  if (!in_place && !is_staged) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToText(tag), ": arrived in a slot that is for other tensors"));
  }
  Received received;
  received.tag = tag;
  received.tensor = {slot.data(), type, shape};
  if (in_place) {
    received.slot = std::move(slot);
    return received;
  }
  absl::StatusOr<Slot> own = expected.pool->Acquire(MemoryKind::kLink);
  if (!own.ok()) return Annotate(own.status(), ToText(tag));
  received.slot = std::move(own).value();
  received.staged = std::move(slot);
  return received;
}

absl::Status Inbox::CheckOpen(const Tag& tag) const {
  if (closed_) return absl::CancelledError("the stage has ended");
  const auto failed = failed_.find(tag.from_stage);
  return failed == failed_.end() ? absl::OkStatus() : failed->second;
}

absl::Status Inbox::CheckWanted(const Tag& tag) const {
  HEADRACE_RETURN_IF_ERROR(CheckOpen(tag));
  if (waiting_.contains(tag)) {
    return absl::AlreadyExistsError(absl::StrCat(ToText(tag), ": has arrived before"));
  }
  const auto taken = taken_.find({tag.from_stage, tag.kind});
  if (taken == taken_.end()) return absl::OkStatus();
  if (tag.step < taken->second.step) {
    return absl::AlreadyExistsError(
        absl::StrCat(ToText(tag), ": step ", taken->second.step, " has begun"));
  }
  if (taken->second.tags.contains(tag)) {
    return absl::AlreadyExistsError(absl::StrCat(ToText(tag), ": was taken before"));
  }
  return absl::OkStatus();
}

absl::Status Inbox::Put(Received received) {
  received.arrived_ns = SteadyNanos();
  if (pace_) {
    received.available_at = pace_(received.tag);
    const absl::Duration still = received.available_at - absl::Now();
    received.arrived_ns += std::max<int64_t>(0, absl::ToInt64Nanoseconds(still));
  }
  absl::MutexLock lock(&mu_);
  HEADRACE_RETURN_IF_ERROR(CheckWanted(received.tag));
  if (!received.slot.valid()) ++inline_waiting_;
  const Tag tag = received.tag;
  waiting_.emplace(tag, std::move(received));
  return absl::OkStatus();
}

void Inbox::Remember(const Tag& tag) {
  if (!IsPipelined(tag.kind)) return;
  Taken& taken = taken_[{tag.from_stage, tag.kind}];
  if (tag.step > taken.step) {
    taken.step = tag.step;
    taken.tags.clear();
  }
  taken.tags.insert(tag);
}

absl::StatusOr<Received> Inbox::Take(const Tag& tag, absl::Time deadline) {
  const absl::Time began = absl::Now();
  const auto late = [&] {
    return absl::DeadlineExceededError(absl::StrFormat("%s: has not come after %.1f s", ToText(tag),
                                                       absl::ToDoubleSeconds(absl::Now() - began)));
  };
  Received received;
  std::function<void(const Tag&)> on_taken;
  {
    absl::MutexLock lock(&mu_);
    const auto decided = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return closed_ || waiting_.contains(tag) || failed_.contains(tag.from_stage) ||
             ended_.contains(tag.from_stage);
    };
    if (!mu_.AwaitWithDeadline(absl::Condition(&decided), deadline)) {
      return late();
    }
    HEADRACE_RETURN_IF_ERROR(CheckOpen(tag));
    auto found = waiting_.find(tag);
    if (found != waiting_.end() && found->second.available_at > began) {
      const absl::Time available = found->second.available_at;
      const auto broken = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !CheckOpen(tag).ok(); };
      mu_.AwaitWithDeadline(absl::Condition(&broken), std::min(deadline, available));
      HEADRACE_RETURN_IF_ERROR(CheckOpen(tag));
      if (deadline < available) return late();
      found = waiting_.find(tag);
    }
    if (found == waiting_.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat(ToText(tag), ": stage ", tag.from_stage, " ended its stream without it"));
    }
    received = std::move(found->second);
    waiting_.erase(found);
    if (!received.slot.valid()) --inline_waiting_;
    Remember(tag);
    on_taken = on_taken_;
  }
  if (on_taken) on_taken(tag);
  return received;
}

void Inbox::Fail(int stage, absl::Status cause) {
  absl::MutexLock lock(&mu_);
  if (ended_.contains(stage)) return;  // it has sent all it had to, and may go before we are done
  failed_.emplace(stage, std::move(cause));
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->first.from_stage != stage) {
      ++it;
      continue;
    }
    if (!it->second.slot.valid()) --inline_waiting_;
    it = waiting_.erase(it);
  }
}

void Inbox::End(int stage) {
  absl::MutexLock lock(&mu_);
  ended_.insert(stage);
}

void Inbox::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  waiting_.clear();
  inline_waiting_ = 0;
}

void Inbox::OnTaken(std::function<void(const Tag&)> on_taken) {
  absl::MutexLock lock(&mu_);
  on_taken_ = std::move(on_taken);
}

}  // namespace headrace
