// Memory on its way out: keeps a tensor's slot until gRPC has let go of the last byte of it.
#pragma once

#include <grpcpp/support/slice.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/pipeline/outbox.h"

namespace headrace {

// Counts the buffers a link has given to gRPC and not got back. Thread-safe.
class BuffersInFlight {
 public:
  void Add();
  void Remove();
  // False: there still are some after `timeout`.
  bool AwaitNone(absl::Duration timeout);

 private:
  absl::Mutex mu_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

// Counts its own references: one of whoever made it, one a slice. gRPC drops slices on threads of
// its own, so the count is also what orders their reads before the slot's next use.
class SendBuffer {
 public:
  // `in_flight` is shared because gRPC may drop a slice after the link has let go.
  static SendBuffer* Create(Outgoing outgoing, std::shared_ptr<BuffersInFlight> in_flight);
  SendBuffer(const SendBuffer&) = delete;
  SendBuffer& operator=(const SendBuffer&) = delete;

  const Outgoing& outgoing() const { return outgoing_; }
  // A slice that refers to these bytes of the tensor and holds a reference.
  grpc::Slice SliceOf(int64_t offset, int64_t length);
  // The last one frees the slot and this.
  void Unref();

 private:
  SendBuffer(Outgoing outgoing, std::shared_ptr<BuffersInFlight> in_flight);
  ~SendBuffer() = default;

  Outgoing outgoing_;
  std::shared_ptr<BuffersInFlight> in_flight_;
  std::atomic<int> references_{1};
};

}  // namespace headrace
