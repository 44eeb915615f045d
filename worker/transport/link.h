// The seam between the pipeline and a way to move tensors. A stage's links are opened all at once
// (Connect) by the side that sends; the receiving side is the worker's StageService, which hands
// frames to the Inbox of the stage they are for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "headrace/v1/worker.pb.h"
#include "worker/pipeline/inbox.h"
#include "worker/pipeline/outbox.h"

namespace headrace {

struct LinkContext {
  std::string job_id;
  int64_t generation = 0;
  int stage = 0;
  int credits = 2;  // per pipelined class (activation, gradient) and edge
};

// Opens one stream to each stage in `receivers`, says HELLO, waits until each answers.
//   UNAVAILABLE        names worker, stage, address and what the transport said
//   DEADLINE_EXCEEDED  likewise
//   FAILED_PRECONDITION  the receiver refused: other job or generation
// `on_lost(stage, cause)` is called once per link that breaks later, on a link thread.
absl::StatusOr<std::unique_ptr<Outbox>> ConnectGrpcLinks(
    const LinkContext& context, const std::vector<v1::Peer>& receivers, absl::Time deadline,
    std::function<void(int stage, absl::Status cause)> on_lost);

// The receiving side: which stage's inbox a stream's HELLO is for. Thread-safe. One a worker.
class StageDirectory {
 public:
  // The stage must stay valid until Leave returns; Leave ends its streams and waits for them.
  void Enter(const LinkContext& context, Inbox* inbox);
  void Leave(const std::string& job_id, int64_t generation);
};

}  // namespace headrace
