// A communicator of two ranks for one edge, direction and generation: the stage that sends and the
// one that receives. Made while the edge's stream connects, over which the unique id travels, gone
// with it; a new generation makes a new one.
//
//   New ──Join: init, then a trial──▶ Ready ──Send, Receive──▶ Ready ──the edge goes──▶ Aborted
//    │                                  │                                                 ▲
//    └──────────────────────────────────┴── error, deadline, end of the stream ───────────┘
//                                                                 (buffers are garbage)
//
// NCCL is told not to block and is asked instead (ncclCommGetAsyncError), because it does not
// reliably learn that the peer is gone: the stream does, and its end (LinkPatience.over) aborts. A
// communicator whose work is done is aborted too, for NCCL's orderly end waits for the peer; so the
// sender's goes only when the receiver has said that it has everything.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/transport/device_copies.h"
#include "worker/transport/nccl_api.h"

namespace headrace {

// A new unique id, to be given to both ends' Join. INTERNAL: what NCCL said.
absl::StatusOr<std::string> NewNcclId(const NcclApi& nccl);

// Used by one thread at a time.
class NcclEdge {
 public:
  enum class Role { kSender, kReceiver };

  // Both must outlive the edge.
  NcclEdge(const NcclApi* nccl, DeviceCopies* copies, Role role)
      : nccl_(*nccl), copies_(*copies), role_(role) {}
  ~NcclEdge();  // aborts
  NcclEdge(const NcclEdge&) = delete;
  NcclEdge& operator=(const NcclEdge&) = delete;

  // Joins the peer under `id` and moves a trial between the two, which the receiver checks. Once.
  //   INTERNAL           what NCCL or the device said
  //   INVALID_ARGUMENT   `id` is not one
  //   DATA_LOSS          the trial came through wrong
  //   DEADLINE_EXCEEDED  and what patience.over says
  // After an error, of this or of what follows, the edge is aborted.
  absl::Status Join(const std::string& id, const LinkPatience& patience);

  // The sender's: until NCCL is done with `data`, of this device, which compute has finished by
  // `after` (a mark; −1: already). FAILED_PRECONDITION: not ready; else as Join.
  absl::Status Send(const void* data, int64_t bytes, int64_t after, const LinkPatience& patience);
  // The receiver's: until `data` is there. Waits for compute to be done with what was in it.
  absl::Status Receive(void* data, int64_t bytes, const LinkPatience& patience);

  bool ready() const { return state_ == State::kReady; }

 private:
  enum class State { kNew, kReady, kAborted };

  absl::Status Initialise(const NcclUniqueId& id, const LinkPatience& patience);
  absl::Status Try(const std::string& id, const LinkPatience& patience);
  absl::Status Move(void* data, int64_t bytes, const LinkPatience& patience);
  // Asks until the communicator has done what `call` began, which answered `result`.
  absl::Status Settle(const char* call, int result, const LinkPatience& patience);
  absl::Status Failure(const char* call, int result) const;
  absl::Status OrAbort(absl::Status status);
  void Abort();

  const NcclApi& nccl_;
  DeviceCopies& copies_;
  const Role role_;
  State state_ = State::kNew;
  NcclCommunicator* communicator_ = nullptr;
};

}  // namespace headrace
