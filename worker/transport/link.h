// The seam between the pipeline and a way to move tensors. A stage's links are opened all at once
// (ConnectLinks) by the side that sends; the receiving side is the worker's StageService, which
// hands frames to the Inbox of the stage they are for (grpc_service.h).
//
// Every link is a gRPC stream. Between workers of one host it goes over a Unix socket where there
// is one, and carries frames without payloads where the sender can attach the receiver's memory:
// the tensor itself is copied once, into the slot it will be used in. Between CUDA devices the same
// is done with device memory (cuda_ipc.h), or the tensor goes by NCCL (nccl_edge.h).
// docs/format-frame.md has what passes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "headrace/v1/worker.pb.h"
#include "worker/backend/link_device.h"
#include "worker/pipeline/inbox.h"
#include "worker/pipeline/outbox.h"
#include "worker/pipeline/shared_inputs.h"

namespace headrace {

struct LinkContext {
  std::string job_id;
  int64_t generation = 0;
  int stage = 0;
  int credits = 2;     // per pipelined class (activation, gradient) and edge
  std::string host{};  // HostInfo.id of the worker; empty: shares with nobody
  v1::Transport transport = v1::TRANSPORT_AUTO;
  // Where the stage's tensors lie, but for small ones; null: in host memory. Must outlive all that
  // it is given to.
  LinkDevice* device = nullptr;
  // How long a tensor's copy may take, from when it was handed over or announced: compute may not
  // have finished it yet.
  absl::Duration copy_timeout = absl::Seconds(60);
};

// A stage's links to the stages it sends to.
class Links : public Outbox {
 public:
  // Transport, address and reason of each; they do not change.
  virtual std::vector<v1::LinkInfo> Describe() const = 0;
};

// Opens one stream to each stage in `receivers`, says HELLO, waits until each answers.
//   UNAVAILABLE        names worker, stage, address and what the transport said
//   DEADLINE_EXCEEDED  likewise
//   FAILED_PRECONDITION  the receiver refused: other job or generation; or the transport is forced,
//                      and cannot be: says why
//   ALREADY_EXISTS     the receiver has or had a stream from this stage already
//   CANCELLED          by `cancellation` (may be null: never), at once; it must outlive the Outbox
// `on_lost(stage, cause)` is called once per link that breaks later, on a link thread; it must not
// call Close. `cause` has the code the receiver gave (INVALID_ARGUMENT for a bad frame …), else
// UNAVAILABLE. The Outbox must be closed before the arenas of the slots it was given go.
absl::StatusOr<std::unique_ptr<Links>> ConnectLinks(
    const LinkContext& context, const std::vector<v1::Peer>& receivers, absl::Time deadline,
    std::function<void(int stage, absl::Status cause)> on_lost,
    Cancellation* cancellation = nullptr);

class IncomingStage;

// The receiving side: which stage's inbox a stream's HELLO is for. Thread-safe. One a worker.
class StageDirectory {
 public:
  // The stage's `inbox` takes what arrives for `context`'s job and generation, and its OnTaken is
  // set to return credits. Both it and what `shared` names must stay valid until Leave returns;
  // Leave ends its streams and waits for them.
  void Enter(const LinkContext& context, Inbox* inbox, SharedInputs shared = {});
  // Nothing to do if the stage is not here.
  void Leave(const std::string& job_id, int64_t generation);

  // FAILED_PRECONDITION: not here; names what was asked for and what is here.
  // Shared with the streams that are still leaving it.
  absl::StatusOr<std::shared_ptr<IncomingStage>> Find(const std::string& job_id,
                                                      int64_t generation) const;

 private:
  mutable absl::Mutex mu_;
  std::vector<std::shared_ptr<IncomingStage>> stages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
