// Files that are whole or absent. Errors name the path and what the system said.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace headrace {

absl::StatusOr<std::string> ReadFile(const std::string& path);
// Writes beside, fsyncs, renames over `path`, fsyncs the folder.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);
absl::Status MakeDirectories(const std::string& path);

// A file read through memory. Immutable; any thread.
class MappedFile {
 public:
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::string_view data() const { return data_; }
  // Gives the pages that lie whole within [begin, end) back to the system, for what is not looked
  // at again soon: it stays readable, from the file. Else all that was read counts as this
  // process's memory.
  void Release(int64_t begin, int64_t end) const;

 private:
  explicit MappedFile(std::string_view data) : data_(data) {}
  std::string_view data_;
};

// An exclusive lock on a file for as long as the object lives; the kernel drops it with the
// process.
class FileLock {
 public:
  // FAILED_PRECONDITION: another process holds it.
  static absl::StatusOr<std::unique_ptr<FileLock>> Acquire(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace headrace
