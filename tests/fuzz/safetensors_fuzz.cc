#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/safetensors.h"
#include "tests/fuzz/fuzz_targets.h"

namespace headrace {
namespace {

// A file in memory, named as the process's own.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    FUZZ_CHECK(fd_ >= 0, "memfd_create");
    FUZZ_CHECK(write(fd_, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
               "write");
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

 private:
  const int fd_;
};

}  // namespace

void FuzzSafetensors(std::string_view input) {
  const MemoryFile in_memory(input);
  const auto file = SafetensorsFile::Open(in_memory.path());
  if (!file.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(file.status()), "another error than INVALID_ARGUMENT");
    return;
  }
  // Every byte that the header gives to a tensor can be read, and belongs to one only.
  uint64_t bytes = 0;
  volatile float sum = 0;
  for (const NamedTensor& tensor : (*file)->tensors()) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    for (int64_t i = 0; i < elements; ++i) sum = sum + tensor.data[i];
    bytes += static_cast<uint64_t>(elements) * sizeof(float);
    (*file)->Release(tensor);
  }
  FUZZ_CHECK(bytes == (*file)->payload().size(), "tensors and payload differ in size");
  FUZZ_CHECK(bytes < input.size(), "more tensors than file");
}

}  // namespace headrace
