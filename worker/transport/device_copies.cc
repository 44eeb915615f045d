#include "worker/transport/device_copies.h"

#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/status.h"

namespace headrace {
namespace {

// A thread that sleeps wakes some 50 µs late.
constexpr absl::Duration kSpin = absl::Microseconds(100);
constexpr absl::Duration kShortLook = absl::Microseconds(20);
constexpr absl::Duration kPatientLook = absl::Microseconds(200);
constexpr absl::Duration kLong = absl::Milliseconds(5);

absl::Status Refused(const DeviceFailure& failure) { return absl::InternalError(failure.text); }

}  // namespace

absl::Status LookUntil(const LinkPatience& patience, const std::string& what,
                       const std::function<int(absl::Status* failed)>& look) {
  const absl::Time began = absl::Now();
  for (;;) {
    absl::Status failed;
    const int state = look(&failed);
    if (state > 0) return absl::OkStatus();
    if (state < 0) return failed;
    HEADRACE_RETURN_IF_ERROR(patience.over());
    const absl::Time now = absl::Now();
    if (now >= patience.deadline) {
      return absl::DeadlineExceededError(
          absl::StrFormat("%s after %.1f s", what, absl::ToDoubleSeconds(now - began)));
    }
    if (now - began < kSpin) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(now - began < kLong ? kShortLook : kPatientLook);
    }
  }
}

absl::StatusOr<std::unique_ptr<DeviceCopies>> DeviceCopies::Open(LinkDevice* device) {
  DeviceFailure failure;
  std::unique_ptr<CopyStream> stream(device->OpenStream(&failure));
  if (stream == nullptr) return Refused(failure);
  return std::unique_ptr<DeviceCopies>(new DeviceCopies(device, std::move(stream)));
}

absl::Status DeviceCopies::Copy(void* to, const void* from, int64_t bytes, int64_t after,
                                const LinkPatience& patience) {
  DeviceFailure failure;
  if (after >= 0 && !stream_->After(after, &failure)) return Refused(failure);
  const int64_t ticket = stream_->Copy(to, from, bytes, &failure);
  if (ticket < 0) return Refused(failure);
  return Await(ticket, patience, "the device has not copied it");
}

absl::Status DeviceCopies::Fill(void* to, const std::string& pattern,
                                const LinkPatience& patience) {
  std::memcpy(stream_->trial_host(), pattern.data(), pattern.size());
  return Copy(to, stream_->trial_host(), static_cast<int64_t>(pattern.size()), -1, patience);
}

absl::StatusOr<bool> DeviceCopies::Holds(const void* at, const std::string& pattern,
                                         const LinkPatience& patience) {
  HEADRACE_RETURN_IF_ERROR(
      Copy(stream_->trial_host(), at, static_cast<int64_t>(pattern.size()), -1, patience));
  return std::string_view(stream_->trial_host(), pattern.size()) == pattern;
}

absl::Status DeviceCopies::AfterCompute() {
  DeviceFailure failure;
  const int64_t mark = device_->Mark(&failure);
  if (mark < 0 || !stream_->After(mark, &failure)) return Refused(failure);
  return absl::OkStatus();
}

absl::Status DeviceCopies::Settle(const LinkPatience& patience, const std::string& what) {
  DeviceFailure failure;
  const int64_t ticket = stream_->Ticket(&failure);
  if (ticket < 0) return Refused(failure);
  return Await(ticket, patience, what);
}

absl::Status DeviceCopies::Await(int64_t ticket, const LinkPatience& patience,
                                 const std::string& what) {
  return LookUntil(patience, what, [&](absl::Status* failed) {
    DeviceFailure failure;
    const int state = stream_->Look(ticket, &failure);
    if (state < 0) *failed = Refused(failure);
    return state;
  });
}

std::string TrialPattern(const std::string& nonce, TrialBy by, int64_t bytes) {
  uint32_t state = by == TrialBy::kSender ? 0x9e3779b9U : 0x7f4a7c15U;
  for (char c : nonce) state = state * 0x01000193U ^ static_cast<unsigned char>(c);
  std::string pattern(static_cast<size_t>(bytes), '\0');
  for (char& c : pattern) {
    state = state * 1664525U + 1013904223U;
    c = static_cast<char>(state >> 24);
  }
  return pattern;
}

}  // namespace headrace
