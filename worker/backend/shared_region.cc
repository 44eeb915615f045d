#include "worker/backend/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "worker/backend/device.h"

namespace headrace {
namespace {

constexpr size_t kNonceBytes = 16;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max() / 2;

absl::Status NoMemory(int64_t bytes, const std::string& why) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot take ", bytes, " bytes of shared memory: ", why));
}

absl::Status NoMemory(int64_t bytes, int error) { return NoMemory(bytes, std::strerror(error)); }

// The system would sooner kill processes than say that it has no more pages.
absl::Status CheckAvailable(int64_t bytes) {
  const absl::StatusOr<DeviceInfo> device = ProbeDevice("cpu");
  if (!device.ok()) return NoMemory(bytes, std::string(device.status().message()));
  if (bytes <= device->available_bytes) return absl::OkStatus();
  return NoMemory(bytes, absl::StrCat(device->available_bytes, " are available"));
}

absl::StatusOr<char*> Map(int fd, int64_t bytes) {
  void* const base =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return absl::UnavailableError(std::strerror(errno));
  // Advice only: few systems give shared memory huge pages.
  madvise(base, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<char*>(base);
}

// Opening in earnest what another process names could block or worse; this only looks.
absl::StatusOr<int> OpenRegularFile(const std::string& path) {
  const auto failed = [&path] {
    return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  };
  const int look = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (look < 0) return failed();
  const absl::Cleanup close_look = [look] { close(look); };
  struct stat info;
  if (fstat(look, &info) != 0) return failed();
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is no memory"));
  const int fd = open(absl::StrCat("/proc/self/fd/", look).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return failed();
  return fd;
}

absl::Status CheckSealed(int fd, const std::string& path, int64_t bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not of the ", bytes, " bytes that were said"));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " could still be made smaller"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Create(int64_t bytes) {
  if (bytes < 0 || bytes >= kMostBytes) return NoMemory(bytes, EFBIG);
  if (absl::Status available = CheckAvailable(bytes); !available.ok()) return available;
  Name name;
  name.bytes = kPage + PieceBytes(bytes);
  name.process = getpid();
  name.nonce.resize(kNonceBytes);
  if (getrandom(name.nonce.data(), kNonceBytes, 0) != static_cast<ssize_t>(kNonceBytes)) {
    return NoMemory(bytes, errno);
  }
  const int fd = memfd_create("headrace", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return NoMemory(bytes, errno);
  absl::Cleanup close_fd = [fd] { close(fd); };
  name.file = fd;
  fchmod(fd, S_IRUSR | S_IWUSR);
  // Not ftruncate, which promises pages that may not be there when they are touched.
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(fd, 0, name.bytes);
  if (error != 0) return NoMemory(bytes, error);
  if (fcntl(fd, F_ADD_SEALS, kSeals) != 0) return NoMemory(bytes, errno);
  const absl::StatusOr<char*> base = Map(fd, name.bytes);
  if (!base.ok()) return NoMemory(bytes, errno);
  std::memcpy(*base, name.nonce.data(), kNonceBytes);
  std::move(close_fd).Cancel();
  return std::unique_ptr<SharedRegion>(new SharedRegion(std::move(name), fd, *base));
}

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Attach(const Name& name) {
  if (name.process <= 0 || name.file < 0 || name.bytes < kPage || name.bytes >= kMostBytes ||
      name.nonce.size() != kNonceBytes) {
    return absl::InvalidArgumentError("what was said names no shared memory");
  }
  const std::string path = absl::StrCat("/proc/", name.process, "/fd/", name.file);
  const absl::StatusOr<int> fd = OpenRegularFile(path);
  if (!fd.ok()) return fd.status();
  const absl::Cleanup close_fd = [&fd] { close(*fd); };
  if (absl::Status sealed = CheckSealed(*fd, path, name.bytes); !sealed.ok()) return sealed;
  const absl::StatusOr<char*> base = Map(*fd, name.bytes);
  if (!base.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot map ", path, ": ", base.status().message()));
  }
  std::unique_ptr<SharedRegion> region(new SharedRegion(name, -1, *base));
  if (std::memcmp(*base, name.nonce.data(), kNonceBytes) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is other memory than was meant"));
  }
  return region;
}

SharedRegion::SharedRegion(Name name, int fd, char* base)
    : name_(std::move(name)), fd_(fd), base_(base) {}

SharedRegion::~SharedRegion() {
  munmap(base_, static_cast<size_t>(name_.bytes));
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<char*> SharedRegion::Carve(int64_t bytes) {
  if (bytes < 0 || bytes > name_.bytes - carved_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes of ", name_.bytes,
                                                     " of shared memory, of which ", carved_bytes_,
                                                     " are taken"));
  }
  char* const piece = base_ + carved_bytes_;
  carved_bytes_ += PieceBytes(bytes);
  return piece;
}

char* SharedRegion::At(int64_t offset, int64_t length) const {
  if (offset < kPage || length < 0 || offset > name_.bytes || length > name_.bytes - offset) {
    return nullptr;
  }
  return base_ + offset;
}

}  // namespace headrace
