// Ends what another thread is blocked in: its RPCs and its pauses between them. Once cancelled,
// always cancelled. Thread-safe; must outlive its calls.
#pragma once

#include <grpcpp/client_context.h>

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace headrace {

class Cancellation {
 public:
  void Cancel();
  bool cancelled() const;
  // False: cancelled, maybe before the time was over.
  bool Pause(absl::Duration duration) const;

  // A call in flight: `context` is cancelled with `cancellation` (may be null: never) while this
  // object lives. Make it before the call; destroy it before the context.
  class Call {
   public:
    Call(Cancellation* cancellation, grpc::ClientContext* context);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Cancellation* const cancellation_;
    grpc::ClientContext* const context_;
  };

 private:
  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
