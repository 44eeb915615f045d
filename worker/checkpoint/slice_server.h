// The worker's end of PutSlice and GetSlice. Reads and writes the disk on the RPC's thread, which
// is why so few are served at a time: two that come, eight that go. A peer can make it hold a chunk
// of memory each and write as much as it said, never more than the disk has room for. Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <list>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "headrace/v1/worker.grpc.pb.h"
#include "worker/checkpoint/slice_store.h"

namespace headrace {

class SliceServer {
 public:
  static constexpr int kMaxPuts = 2, kMaxGets = 8;
  // A peer that has sent nothing for so long is cut off when another wants its place.
  static constexpr absl::Duration kPatience = absl::Seconds(10);

  // What a slice comes from: gRPC's ServerReader.
  using Reader = grpc::ServerReaderInterface<v1::PutSliceRequest>;
  using Writer = grpc::ServerWriterInterface<v1::GetSliceResponse>;

  // `store` must outlive the server; null: this worker keeps no slices.
  explicit SliceServer(SliceStore* store, absl::Duration patience = kPatience)
      : store_(store), patience_(patience) {}

  // Takes a neighbour's slice in. `serves` says whether this job and generation are served here.
  //   FAILED_PRECONDITION  they are not, or no slices are kept here
  //   INVALID_ARGUMENT     no hash, size or step
  //   RESOURCE_EXHAUSTED   no room on the disk
  //   UNAVAILABLE          two are coming already
  //   DATA_LOSS            it has another hash or size than was said
  absl::Status Put(
      grpc::ServerContext* context, Reader* reader,
      const std::function<bool(const std::string& job_id, int64_t generation)>& serves);

  // Sends the slice from an offset on. Not verified: whoever asked does.
  //   NOT_FOUND         not here
  //   INVALID_ARGUMENT  the offset is beyond its end
  //   UNAVAILABLE       eight are going already
  //   CANCELLED         the peer has gone
  absl::Status Get(const v1::GetSliceRequest& request, Writer* writer);

 private:
  struct Arrival {
    grpc::ServerContext* context;
    absl::Time last_heard;
  };
  using Arrivals = std::list<Arrival>;

  absl::StatusOr<Arrivals::iterator> Arrive(grpc::ServerContext* context);
  void Heard(Arrivals::iterator arrival);

  SliceStore* const store_;
  const absl::Duration patience_;
  absl::Mutex mu_;
  Arrivals arrivals_ ABSL_GUARDED_BY(mu_);
  int gets_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace headrace
