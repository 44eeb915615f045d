#include "worker/transport/cuda_ipc.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

// It need not be hard to guess: what it keeps apart are the memories of one host's workers.
std::string NewNonce() {
  std::string nonce(16, '\0');
  if (getrandom(nonce.data(), nonce.size(), 0) < 0) nonce.assign("no random bytes ");
  return nonce;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerMemory>> PeerMemory::Attach(const v1::DeviceMemory& offer,
                                                               DeviceCopies* copies,
                                                               const LinkPatience& patience) {
  char handle[LinkDevice::kHandleBytes];
  if (offer.handle().size() != sizeof(handle)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a handle of ", offer.handle().size(), " bytes, expected ", sizeof(handle)));
  }
  std::memcpy(handle, offer.handle().data(), sizeof(handle));
  DeviceFailure failure;
  int64_t opened = 0;
  char* const base = copies->device()->Import(handle, &opened, &failure);
  if (base == nullptr) return absl::InternalError(failure.text);
  std::unique_ptr<PeerMemory> memory(new PeerMemory(copies->device(), base, offer.bytes()));
  if (offer.bytes() > opened) {
    return absl::InvalidArgumentError(
        absl::StrCat("an offer of ", offer.bytes(), " bytes, where there are ", opened));
  }
  HEADRACE_RETURN_IF_ERROR(memory->Try(offer, copies, patience));
  return memory;
}

PeerMemory::~PeerMemory() { device_->Unimport(base_); }

char* PeerMemory::At(int64_t offset, int64_t length) const {
  if (offset < 0 || length < 0 || offset > bytes_ || length > bytes_ - offset) return nullptr;
  return base_ + offset;
}

absl::Status PeerMemory::Try(const v1::DeviceMemory& offer, DeviceCopies* copies,
                             const LinkPatience& patience) const {
  const int64_t bytes = offer.trial_bytes();
  char* const place = At(offer.trial_offset(), bytes);
  if (place == nullptr || bytes < 1 || bytes > CopyStream::kTrialBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a trial of ", bytes, " bytes at ", offer.trial_offset(), " of ", bytes_));
  }
  HEADRACE_ASSIGN_OR_RETURN(
      const bool meant,
      copies->Holds(place, TrialPattern(offer.nonce(), TrialBy::kReceiver, bytes), patience));
  if (!meant) return absl::DataLossError("what was opened is not the memory that was meant");
  char* const own = copies->stream()->trial();
  HEADRACE_RETURN_IF_ERROR(
      copies->Fill(own, TrialPattern(offer.nonce(), TrialBy::kSender, bytes), patience));
  return copies->Copy(place, own, bytes, -1, patience);
}

absl::StatusOr<MemoryOffer> MemoryOffer::Make(char* place, int64_t bytes, DeviceCopies* copies,
                                              const LinkPatience& patience) {
  LinkDevice* const device = copies->device();
  char handle[LinkDevice::kHandleBytes];
  DeviceFailure failure;
  if (!device->Export(handle, &failure)) return absl::InternalError(failure.text);
  MemoryOffer offer(place, copies);
  v1::DeviceMemory& message = offer.message_;
  message.set_device(device->uuid());
  message.set_handle(handle, sizeof(handle));
  message.set_bytes(device->memory_bytes());
  message.set_trial_offset(place - device->memory());
  message.set_trial_bytes(std::min(bytes, CopyStream::kTrialBytes));
  message.set_nonce(NewNonce());
  const std::string pattern =
      TrialPattern(message.nonce(), TrialBy::kReceiver, message.trial_bytes());
  // Compute may still be using the place.
  HEADRACE_RETURN_IF_ERROR(copies->AfterCompute());
  HEADRACE_RETURN_IF_ERROR(copies->Fill(place, pattern, patience));
  return offer;
}

absl::Status MemoryOffer::Check(const LinkPatience& patience) const {
  HEADRACE_ASSIGN_OR_RETURN(
      const bool arrived,
      copies_->Holds(place_,
                     TrialPattern(message_.nonce(), TrialBy::kSender, message_.trial_bytes()),
                     patience));
  return arrived ? absl::OkStatus() : absl::DataLossError("the trial's copy has not arrived");
}

}  // namespace headrace
