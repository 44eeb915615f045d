// Blobs by their content: `blobs/ab/<sha256>` is whole and verified, `partial/<sha256>` is the part
// of one that has arrived so far. A blob never changes once it is there. Which ones are still used
// the job store knows; store.h removes the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/sha256.h"

namespace headrace {

struct BlobStat {
  bool complete = false;
  int64_t size_bytes = 0;  // of a complete blob, or of the part that arrived
};

class BlobStore;

// One upload under way. Used by one thread; must not outlive its store. Going away before Commit
// keeps what has arrived, so that a later upload resumes there.
class BlobWriter {
 public:
  ~BlobWriter();
  BlobWriter(const BlobWriter&) = delete;
  BlobWriter& operator=(const BlobWriter&) = delete;

  // INVALID_ARGUMENT: would pass the announced size. RESOURCE_EXHAUSTED: the disk is full.
  absl::Status Append(std::string_view data);
  // Makes the blob durable and visible.
  //   FAILED_PRECONDITION  bytes are missing; they may still be sent
  //   DATA_LOSS            the content has another hash; what had arrived is thrown away
  absl::Status Commit();
  int64_t received_bytes() const { return received_; }

 private:
  friend class BlobStore;
  BlobWriter(BlobStore* store, std::string sha256, int64_t size_bytes, int fd)
      : store_(store), sha256_(std::move(sha256)), size_bytes_(size_bytes), fd_(fd) {}
  absl::Status HashWhatIsThere();

  BlobStore* const store_;
  const std::string sha256_;
  const int64_t size_bytes_;
  const int fd_;
  int64_t received_ = 0;
  Sha256 hash_;
};

// Thread-safe. Calls wait for the disk.
class BlobStore {
 public:
  // Parts that nobody has added to for so long are removed: their uploads will not go on.
  static constexpr absl::Duration kPartialsKept = absl::Hours(7 * 24);

  static absl::StatusOr<std::unique_ptr<BlobStore>> Open(const std::string& folder);

  // Every call checks that `sha256` is 64 lower-case hex digits before it makes a path of it:
  // INVALID_ARGUMENT.

  absl::StatusOr<BlobStat> Stat(const std::string& sha256) const;
  // Where a whole blob lies. NOT_FOUND: there is none (says how much has arrived).
  absl::StatusOr<std::string> Path(const std::string& sha256) const;
  // Starts an upload at `offset`, which is 0 (afresh) or what Stat said.
  //   ALREADY_EXISTS       the whole blob is there; it counts as sent just now
  //   UNAVAILABLE          somebody else is uploading this blob; try again
  //   OUT_OF_RANGE         `offset` is neither (names the right one)
  //   RESOURCE_EXHAUSTED   the disk has not that much room
  absl::StatusOr<std::unique_ptr<BlobWriter>> StartUpload(const std::string& sha256,
                                                          int64_t size_bytes, int64_t offset);
  // Somebody means to use this blob, which no row says yet: it counts as sent just now.
  //   NOT_FOUND  as Path
  absl::Status Touch(const std::string& sha256);
  // Deletes a whole blob; nothing to do if there is none.
  //   UNAVAILABLE  it is being uploaded
  absl::Status Remove(const std::string& sha256);
  // Reads a whole blob, and deletes it if its content has another hash: the disk has damaged it,
  // and it stands in the way of a sound one. True: that was so. `stop` set to true makes it end
  // early.
  //   CANCELLED  stopped
  absl::StatusOr<bool> RemoveIfDamaged(const std::string& sha256, const std::atomic<bool>& stop);
  // Whole blobs that were sent, or touched, before `time`.
  absl::StatusOr<std::vector<std::string>> UntouchedSince(absl::Time time) const;
  // Of all whole blobs.
  int64_t total_bytes() const;

 private:
  friend class BlobWriter;
  explicit BlobStore(std::string folder) : folder_(std::move(folder)) {}
  std::string BlobPath(const std::string& sha256) const;
  std::string PartialPath(const std::string& sha256) const;
  absl::Status CheckRoom(int64_t bytes) const;
  absl::Status CountBlobs();
  absl::Status RemoveOldPartials(absl::Time now) const;
  void Release(const std::string& sha256);
  void Count(int64_t bytes);

  const std::string folder_;
  mutable absl::Mutex mu_;
  std::set<std::string> uploading_ ABSL_GUARDED_BY(mu_);
  int64_t total_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace headrace
