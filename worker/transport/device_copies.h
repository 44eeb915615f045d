// A link's copies on its device: each is awaited, with a deadline, by looking.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/backend/link_device.h"

namespace headrace {

// How long a link waits for its device or its peer.
struct LinkPatience {
  absl::Time deadline = absl::InfiniteFuture();
  // Why nobody waits any more: the stream has ended, the stage was told to stop. Called often.
  std::function<absl::Status()> over = [] { return absl::OkStatus(); };
};

// Looks until there is an answer: at first without sleeping, since most waits are short.
// `look` returns 1 (done), 0 (not yet) or −1 (failed; then it has set `*failed`).
//   DEADLINE_EXCEEDED  "`what` after 5.0 s"
//   else               what `look` or `patience` said
absl::Status LookUntil(const LinkPatience& patience, const std::string& what,
                       const std::function<int(absl::Status* failed)>& look);

// Used by one thread at a time.
class DeviceCopies {
 public:
  // INTERNAL: the device refuses; says what it said.
  static absl::StatusOr<std::unique_ptr<DeviceCopies>> Open(LinkDevice* device);

  // Copies, once compute has passed `after` (a mark; −1: at once), and waits for it. Memory as
  // CopyStream::Copy.
  //   INTERNAL           what the device said
  //   DEADLINE_EXCEEDED  and what patience.over said: the copy may still be under way
  absl::Status Copy(void* to, const void* from, int64_t bytes, int64_t after,
                    const LinkPatience& patience);
  // A trial's: writes `pattern`, of at most kTrialBytes, to device memory, and tells whether it is
  // what lies there. Errors as Copy.
  absl::Status Fill(void* to, const std::string& pattern, const LinkPatience& patience);
  absl::StatusOr<bool> Holds(const void* at, const std::string& pattern,
                             const LinkPatience& patience);
  // What comes next waits until compute has done what it was told so far.
  absl::Status AfterCompute();
  // Waits for what NCCL has put into the stream. Errors as Copy.
  absl::Status Settle(const LinkPatience& patience, const std::string& what);

  LinkDevice* device() const { return device_; }
  CopyStream* stream() const { return stream_.get(); }

 private:
  DeviceCopies(LinkDevice* device, std::unique_ptr<CopyStream> stream)
      : device_(device), stream_(std::move(stream)) {}
  absl::Status Await(int64_t ticket, const LinkPatience& patience, const std::string& what);

  LinkDevice* const device_;
  const std::unique_ptr<CopyStream> stream_;
};

// What the two ends of a link write and expect when they try it: `bytes` that depend on `nonce` and
// on who writes them.
enum class TrialBy { kReceiver, kSender };
std::string TrialPattern(const std::string& nonce, TrialBy by, int64_t bytes);

}  // namespace headrace
