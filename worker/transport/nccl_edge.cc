#include "worker/transport/nccl_edge.h"

#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "common/status.h"

namespace headrace {
namespace {

constexpr int kRanks = 2;
constexpr absl::Duration kAbortTime = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::string> NewNcclId(const NcclApi& nccl) {
  NcclUniqueId id;
  if (const int result = nccl.get_unique_id(&id); result != kNcclSuccess) {
    return absl::InternalError(absl::StrCat("ncclGetUniqueId: ", nccl.get_error_string(result),
                                            ": ", nccl.get_last_error(nullptr)));
  }
  return std::string(id.internal, sizeof(id.internal));
}

NcclEdge::~NcclEdge() { Abort(); }

absl::Status NcclEdge::Join(const std::string& id, const LinkPatience& patience) {
  if (state_ != State::kNew) return absl::FailedPreconditionError("joined already");
  NcclUniqueId unique_id;
  if (id.size() != sizeof(unique_id.internal)) {
    return OrAbort(absl::InvalidArgumentError(absl::StrCat("an id of ", id.size(), " bytes")));
  }
  std::memcpy(unique_id.internal, id.data(), id.size());
  HEADRACE_RETURN_IF_ERROR(OrAbort(Initialise(unique_id, patience)));
  HEADRACE_RETURN_IF_ERROR(OrAbort(Try(id, patience)));
  state_ = State::kReady;
  return absl::OkStatus();
}

absl::Status NcclEdge::Initialise(const NcclUniqueId& id, const LinkPatience& patience) {
  DeviceFailure failure;
  // For its side effect: NCCL takes the calling thread's device.
  if (copies_.stream()->Handle(&failure) == nullptr) return absl::InternalError(failure.text);
  NcclConfig config;
  const int rank = role_ == Role::kSender ? 0 : 1;
  const int result = nccl_.init_rank_config(&communicator_, kRanks, id, rank, &config);
  return Settle("ncclCommInitRankConfig", result, patience);
}

absl::Status NcclEdge::Try(const std::string& id, const LinkPatience& patience) {
  constexpr int64_t kBytes = CopyStream::kTrialBytes;
  char* const trial = copies_.stream()->trial();
  const std::string pattern = TrialPattern(id, TrialBy::kSender, kBytes);
  if (role_ == Role::kSender) {
    HEADRACE_RETURN_IF_ERROR(copies_.Fill(trial, pattern, patience));
    return Move(trial, kBytes, patience);
  }
  HEADRACE_RETURN_IF_ERROR(Move(trial, kBytes, patience));
  HEADRACE_ASSIGN_OR_RETURN(const bool right, copies_.Holds(trial, pattern, patience));
  return right ? absl::OkStatus() : absl::DataLossError("the trial came through wrong");
}

absl::Status NcclEdge::Send(const void* data, int64_t bytes, int64_t after,
                            const LinkPatience& patience) {
  if (state_ != State::kReady) return absl::FailedPreconditionError("NCCL is not ready");
  DeviceFailure failure;
  if (after >= 0 && !copies_.stream()->After(after, &failure)) {
    return OrAbort(absl::InternalError(failure.text));
  }
  return OrAbort(Move(const_cast<void*>(data), bytes, patience));
}

absl::Status NcclEdge::Receive(void* data, int64_t bytes, const LinkPatience& patience) {
  if (state_ != State::kReady) return absl::FailedPreconditionError("NCCL is not ready");
  HEADRACE_RETURN_IF_ERROR(OrAbort(copies_.AfterCompute()));
  return OrAbort(Move(data, bytes, patience));
}

absl::Status NcclEdge::Move(void* data, int64_t bytes, const LinkPatience& patience) {
  DeviceFailure failure;
  void* const stream = copies_.stream()->Handle(&failure);
  if (stream == nullptr) return absl::InternalError(failure.text);
  const size_t count = static_cast<size_t>(bytes);
  const bool sends = role_ == Role::kSender;
  const int result = sends ? nccl_.send(data, count, kNcclUint8, 1, communicator_, stream)
                           : nccl_.receive(data, count, kNcclUint8, 0, communicator_, stream);
  HEADRACE_RETURN_IF_ERROR(Settle(sends ? "ncclSend" : "ncclRecv", result, patience));
  // On the stream by now, where the peer may still make it wait; and fail it.
  LinkPatience watched = patience;
  watched.over = [&]() -> absl::Status {
    int error = kNcclSuccess;
    const int asked = nccl_.get_async_error(communicator_, &error);
    if (asked != kNcclSuccess) return Failure("ncclCommGetAsyncError", asked);
    if (error != kNcclSuccess && error != kNcclInProgress) {
      return Failure(sends ? "ncclSend" : "ncclRecv", error);
    }
    return patience.over();
  };
  return copies_.Settle(watched, sends ? "NCCL has not sent it" : "NCCL has not brought it");
}

absl::Status NcclEdge::Settle(const char* call, int result, const LinkPatience& patience) {
  if (result != kNcclSuccess && result != kNcclInProgress) return Failure(call, result);
  return LookUntil(patience, absl::StrCat(call, " has not ended"), [&](absl::Status* failed) {
    int error = kNcclSuccess;
    const int asked = nccl_.get_async_error(communicator_, &error);
    if (asked == kNcclSuccess && error == kNcclInProgress) return 0;
    if (asked == kNcclSuccess && error == kNcclSuccess) return 1;
    *failed = Failure(call, asked != kNcclSuccess ? asked : error);
    return -1;
  });
}

absl::Status NcclEdge::Failure(const char* call, int result) const {
  const char* const detail = nccl_.get_last_error(communicator_);
  return absl::InternalError(absl::StrCat(call, ": ", nccl_.get_error_string(result),
                                          detail != nullptr && *detail != '\0' ? ": " : "",
                                          detail != nullptr ? detail : ""));
}

absl::Status NcclEdge::OrAbort(absl::Status status) {
  if (!status.ok()) Abort();
  return status;
}

// ncclCommAbort has no deadline either: a thread that it keeps is left behind, as the communicator
// is.
void NcclEdge::Abort() {
  state_ = State::kAborted;
  NcclCommunicator* const communicator = std::exchange(communicator_, nullptr);
  if (communicator == nullptr) return;
  auto aborted = std::make_shared<absl::Notification>();
  std::thread thread([abort = nccl_.abort, communicator, aborted] {
    abort(communicator);
    aborted->Notify();
  });
  if (aborted->WaitForNotificationWithTimeout(kAbortTime)) {
    thread.join();
    return;
  }
  thread.detach();
  LogWarning("ncclCommAbort does not return; its communicator is left behind");
}

}  // namespace headrace
