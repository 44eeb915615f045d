// Streams hold a thread each for as long as they last. This bounds how many there are, and ends one
// whose peer neither reads nor writes any more: gRPC's synchronous Read and Write have no deadline.
#pragma once

#include <grpcpp/server_context.h>

#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace headrace {

// Thread-safe. Must outlive its streams.
class StreamGuard {
 public:
  // One stream, on its handler's stack.
  class Stream {
   public:
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    // Before and after each Read or Write.
    void Waits(absl::Time deadline);
    void Goes() { Waits(absl::InfiniteFuture()); }

   private:
    friend class StreamGuard;
    Stream(StreamGuard* guard, grpc::ServerContext* context) : guard_(guard), context_(context) {}
    StreamGuard* const guard_;
    grpc::ServerContext* const context_;
    absl::Time deadline_ = absl::InfiniteFuture();  // guarded by guard_->mu_
  };

  // `what` for the message: "watch".
  StreamGuard(std::string what, int max_streams)
      : what_(std::move(what)), max_streams_(max_streams) {}

  // RESOURCE_EXHAUSTED: too many.
  absl::StatusOr<std::unique_ptr<Stream>> Enter(grpc::ServerContext* context);

  // Cancels streams that have waited past their deadline. Call now and then.
  void Sweep(absl::Time now);

 private:
  const std::string what_;
  const int max_streams_;
  absl::Mutex mu_;
  std::set<Stream*> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headrace
