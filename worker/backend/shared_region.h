// Memory that another process of this host can map too, so that a tensor it sends lands where it
// will be used.
//
//   owner                                     other process
//   Create: memory taken, sealed ── Name ──▶  Attach: /proc/PROCESS/fd/FILE opened, checked, mapped
//
// It is a memfd, which is POSIX shared memory without a name: there is no file that could be left
// in /dev/shm, however and whenever either process dies, nor does /dev/shm's size count (64 MiB in
// many containers). It goes when nobody maps it any more. Only processes of the owner's user that
// see the owner in /proc can open it. All its pages are taken from the system by Create, and its
// size is sealed, so that no access to it can fail later, whatever the other process does.
//
//   | nonce, one page | piece | piece | …      each piece starts at a page
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace headrace {

// Thread-safe but for Carve.
class SharedRegion {
 public:
  // What another process needs to find it.
  struct Name {
    int64_t process = 0;
    int64_t file = 0;
    int64_t bytes = 0;
    std::string nonce;  // random; proves that what was opened is what was meant
  };

  static constexpr int64_t kPage = 4096;
  // What a piece of `bytes` takes.
  static int64_t PieceBytes(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

  // Room for pieces that take `bytes` in all; zero-filled.
  //   RESOURCE_EXHAUSTED  the system has no such memory: says what it said
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Create(int64_t bytes);
  // Maps another process's region. `name` is what that process says, and is not trusted.
  //   UNAVAILABLE       it cannot be opened or mapped: says what the system said
  //   INVALID_ARGUMENT  what was opened is no region, not sealed, or another one than was meant
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Attach(const Name& name);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  // The owner's: the next `bytes`. RESOURCE_EXHAUSTED: there are not so many left.
  absl::StatusOr<char*> Carve(int64_t bytes);
  const Name& name() const { return name_; }
  // What offsets count from.
  const char* base() const { return base_; }
  int64_t OffsetOf(const void* data) const { return static_cast<const char*>(data) - base_; }
  // `length` bytes at `offset`; null if they are not all within the pieces.
  char* At(int64_t offset, int64_t length) const;

 private:
  SharedRegion(Name name, int fd, char* base);

  const Name name_;
  const int fd_;  // the owner's, open so that others can open it; −1: attached
  char* const base_;
  int64_t carved_bytes_ = kPage;
};

}  // namespace headrace
