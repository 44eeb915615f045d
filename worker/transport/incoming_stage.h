// A stage as the streams that come to it see it: its inbox, and one seat per sending stage.
// Thread-safe.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/pipeline/inbox.h"
#include "worker/transport/link.h"

namespace headrace {

// One stream's end here, as the stage addresses it. Called with the stage's lock held: must not
// block, nor call the stage.
class IncomingStream {
 public:
  virtual ~IncomingStream() = default;
  virtual void ReturnCredit(CreditClass credit_class) = 0;
  virtual void Cancel() = 0;
};

class IncomingStage {
 public:
  IncomingStage(const LinkContext& context, Inbox* inbox, SharedInputs shared)
      : context_(context), inbox_(inbox), shared_(std::move(shared)) {}

  const LinkContext& context() const { return context_; }
  // Valid as the inbox is.
  const SharedInputs& shared() const { return shared_; }
  // Valid for a stream between its Join and its Part.
  Inbox* inbox() const { return inbox_; }

  // Seats `stream`, which must Part before it dies.
  //   INVALID_ARGUMENT     no other stage has this number
  //   ALREADY_EXISTS       the seat is or was taken: a stream cannot be resumed
  //   FAILED_PRECONDITION  the stage has left
  absl::Status Join(int64_t from_stage, IncomingStream* stream);
  void Part(int64_t from_stage);

  // Cancels all streams and waits until they have parted. Idempotent.
  void Leave();
  // The executor has taken this tensor.
  void Taken(const Tag& tag);

 private:
  const LinkContext context_;
  Inbox* const inbox_;
  const SharedInputs shared_;
  absl::Mutex mu_;
  std::map<int64_t, IncomingStream*> seated_ ABSL_GUARDED_BY(mu_);
  std::set<int64_t> seen_ ABSL_GUARDED_BY(mu_);
  bool left_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace headrace
