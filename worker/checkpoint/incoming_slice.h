// A slice on its way onto this worker's disk: written and hashed as it comes, then whole and right
// in the SliceStore, or gone. Used by one thread; `store` must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/sha256.h"
#include "headrace/v1/worker.pb.h"
#include "worker/checkpoint/slice_store.h"

namespace headrace {

class IncomingSlice {
 public:
  // Of `size_bytes`, as whoever sends it says: never is more than that written, and nothing
  // allocated.
  //   INVALID_ARGUMENT    the hash or the size is none
  //   RESOURCE_EXHAUSTED  the disk has no room for so much
  //   the system's error  names the path
  static absl::StatusOr<std::unique_ptr<IncomingSlice>> Begin(SliceStore* store,
                                                              const v1::HeldSlice& slice,
                                                              int64_t size_bytes);
  ~IncomingSlice();  // what did not come to Keep is deleted
  IncomingSlice(const IncomingSlice&) = delete;
  IncomingSlice& operator=(const IncomingSlice&) = delete;

  //   DATA_LOSS           more than was said
  //   RESOURCE_EXHAUSTED  the disk is full
  //   the system's error  names the path
  absl::Status Append(std::string_view bytes);
  int64_t received() const { return received_; }

  // Forgets what has come.
  absl::Status Restart();

  // Hands it to the store and says where it lies. Once.
  //   DATA_LOSS  it has another size or hash
  //   as SliceStore::Keep
  absl::StatusOr<std::string> Keep(SliceOrigin origin);

 private:
  IncomingSlice(SliceStore* store, v1::HeldSlice slice, int64_t size_bytes, std::string path);

  SliceStore* const store_;
  const v1::HeldSlice slice_;
  const int64_t size_bytes_;
  const std::string path_;
  int fd_ = -1;
  int64_t received_ = 0;
  std::unique_ptr<Sha256> hash_ = std::make_unique<Sha256>();
};

}  // namespace headrace
