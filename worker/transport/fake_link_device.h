// For tests: a device whose memory is a memfd, so that another process can import it, and whose
// streams do as they are told: copies wait while Hold is in force, computing until ReleaseCompute.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/link_device.h"

namespace headrace {

// Thread-safe.
class FakeLinkDevice final : public LinkDevice {
 public:
  FakeLinkDevice(std::string uuid, int64_t bytes) : uuid_(std::move(uuid)), bytes_(bytes) {
    fd_ = memfd_create("device", 0);
    if (ftruncate(fd_, bytes) != 0) abort();
    memory_ = Map(fd_, bytes);
  }
  ~FakeLinkDevice() override {
    munmap(memory_, static_cast<size_t>(bytes_));
    close(fd_);
  }

  // Nothing is copied until Release; `call` ("Copy", "Import", …) fails from here on.
  void Hold() { Set(&held_, true); }
  void Release() { Set(&held_, false); }
  void HoldCompute() { Set(&compute_held_, true); }
  void ReleaseCompute() { Set(&compute_held_, false); }
  void Fail(const std::string& call) {
    absl::MutexLock lock(&mu_);
    failing_ = call;
  }
  // Streams do not go until ReleaseStreams.
  void HoldStreams() { Set(&streams_held_, true); }
  void ReleaseStreams() { Set(&streams_held_, false); }
  bool AwaitGoingStream(absl::Duration timeout) {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&going_), timeout);
  }
  // It says that it has so many bytes of memory.
  void Claim(int64_t bytes) {
    absl::MutexLock lock(&mu_);
    claimed_ = bytes;
  }
  // Import opens this in place of what it is given.
  void Misdirect(char* memory) {
    absl::MutexLock lock(&mu_);
    instead_ = memory;
  }
  int streams() const { return Count(streams_); }
  int imports() const { return Count(imports_); }

  const char* uuid() const override { return uuid_.c_str(); }
  char* memory() override { return memory_; }
  int64_t memory_bytes() const override {
    absl::MutexLock lock(&mu_);
    return claimed_ > 0 ? claimed_ : bytes_;
  }

  int64_t Mark(DeviceFailure* failure) override {
    absl::MutexLock lock(&mu_);
    if (Fails("Mark", failure)) return -1;
    // Those made while compute is held are reached when it is not.
    return compute_held_ ? 1 : 0;
  }
  int LookAtMark(int64_t mark, DeviceFailure* failure) override {
    absl::MutexLock lock(&mu_);
    return mark == 0 || !compute_held_ ? 1 : 0;
  }

  CopyStream* OpenStream(DeviceFailure* failure) override {
    absl::MutexLock lock(&mu_);
    if (Fails("OpenStream", failure)) return nullptr;
    ++streams_;
    return new Stream(this);
  }

  bool Export(char (&handle)[kHandleBytes], DeviceFailure* failure) override {
    absl::MutexLock lock(&mu_);
    if (Fails("Export", failure)) return false;
    std::snprintf(handle, sizeof(handle), "/proc/%d/fd/%d %ld", getpid(), fd_,
                  static_cast<long>(bytes_));
    return true;
  }
  char* Import(const char (&handle)[kHandleBytes], int64_t* opened,
               DeviceFailure* failure) override {
    absl::MutexLock lock(&mu_);
    if (Fails("Import", failure)) return nullptr;
    ++imports_;
    *opened = bytes_;
    if (instead_ != nullptr) return instead_;
    char path[kHandleBytes] = "";
    long bytes = 0;
    std::sscanf(handle, "%63s %ld", path, &bytes);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
      std::snprintf(failure->text, sizeof(failure->text), "no such memory");
      return nullptr;
    }
    char* const memory = Map(fd, bytes);
    close(fd);
    *opened = bytes;
    imported_[memory] = static_cast<size_t>(bytes);
    return memory;
  }
  void Unimport(char* memory) override {
    absl::MutexLock lock(&mu_);
    --imports_;
    if (const auto found = imported_.extract(memory)) munmap(memory, found.mapped());
  }
  bool Idle() override { return true; }

 private:
  struct Work {
    int64_t ticket;
    int64_t after;
    void* to;
    const void* from;
    int64_t bytes;
  };

  class Stream final : public CopyStream {
   public:
    explicit Stream(FakeLinkDevice* device) : device_(device) {}
    ~Stream() override {
      absl::MutexLock lock(&device_->mu_);
      device_->going_ = true;
      const auto may_go = [this] { return !device_->streams_held_; };
      device_->mu_.Await(absl::Condition(&may_go));
      --device_->streams_;
    }
    bool After(int64_t mark, DeviceFailure* failure) override {
      absl::MutexLock lock(&device_->mu_);
      if (device_->Fails("After", failure)) return false;
      after_ = mark;
      return true;
    }
    int64_t Copy(void* to, const void* from, int64_t bytes, DeviceFailure* failure) override {
      absl::MutexLock lock(&device_->mu_);
      if (device_->Fails("Copy", failure)) return -1;
      work_.push_back({next_, after_, to, from, bytes});
      return next_++;
    }
    int64_t Ticket(DeviceFailure* failure) override { return Copy(nullptr, nullptr, 0, failure); }
    int Look(int64_t ticket, DeviceFailure* failure) override {
      absl::MutexLock lock(&device_->mu_);
      if (device_->Fails("Look", failure)) return -1;
      while (!work_.empty() && !device_->held_ &&
             (work_.front().after <= 0 || !device_->compute_held_)) {
        const Work work = work_.front();
        if (work.bytes > 0) std::memcpy(work.to, work.from, static_cast<size_t>(work.bytes));
        work_.pop_front();
      }
      return work_.empty() || work_.front().ticket > ticket ? 1 : 0;
    }
    void* Handle(DeviceFailure* failure) override { return this; }
    char* trial() override { return trial_; }
    char* trial_host() override { return trial_host_; }

   private:
    FakeLinkDevice* const device_;
    std::deque<Work> work_;
    int64_t next_ = 0, after_ = -1;
    char trial_[kTrialBytes] = {}, trial_host_[kTrialBytes] = {};
  };

  static char* Map(int fd, int64_t bytes) {
    void* const memory =
        mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) abort();
    return static_cast<char*>(memory);
  }
  void Set(bool* flag, bool value) {
    absl::MutexLock lock(&mu_);
    *flag = value;
  }
  int Count(const int& count) const {
    absl::MutexLock lock(&mu_);
    return count;
  }
  bool Fails(const char* call, DeviceFailure* failure) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    if (failing_ != call) return false;
    std::snprintf(failure->text, sizeof(failure->text), "%s: fake error", call);
    return true;
  }

  const std::string uuid_;
  const int64_t bytes_;
  int fd_ = -1;
  char* memory_ = nullptr;
  mutable absl::Mutex mu_;
  bool held_ = false, compute_held_ = false, streams_held_ = false, going_ = false;
  std::string failing_;
  char* instead_ = nullptr;
  int64_t claimed_ = 0;
  int streams_ = 0, imports_ = 0;
  std::map<char*, size_t> imported_;
};

}  // namespace headrace
