#include "worker/backend/cuda/link_device.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::cuda {
namespace {

bool Succeeded(cudaError_t error, const char* call, DeviceFailure* failure) {
  if (error == cudaSuccess) return true;
  std::snprintf(failure->text, sizeof(failure->text), "%s: %s: %s", call, cudaGetErrorName(error),
                cudaGetErrorString(error));
  cudaGetLastError();  // said; else the next launch of a kernel would say it again
  return false;
}

// How much memory there is from `memory` to the end of its allocation: the runtime does not tell,
// the driver does. −1: see `failure`.
int64_t BytesAt(const void* memory, DeviceFailure* failure) {
  using AddressRange = int (*)(unsigned long long* base, size_t* bytes, unsigned long long address);
  constexpr unsigned kVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (!Succeeded(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, kVersion,
                                                  cudaEnableDefault, &found),
                 "cudaGetDriverEntryPointByVersion", failure)) {
    return -1;
  }
  const auto address = reinterpret_cast<unsigned long long>(memory);
  unsigned long long base = 0;
  size_t bytes = 0;
  const int error = found == cudaDriverEntryPointSuccess
                        ? reinterpret_cast<AddressRange>(function)(&base, &bytes, address)
                        : static_cast<int>(cudaErrorNotSupported);
  if (error != 0) {
    std::snprintf(failure->text, sizeof(failure->text), "cuMemGetAddressRange: error %d", error);
    return -1;
  }
  return static_cast<int64_t>(base + bytes - address);
}

// The latest places in a stream that somebody may ask for. A number whose event was used again
// counts as reached when the later one is, which is never too early.
class Places {
 public:
  ~Places() {
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  bool Open(DeviceFailure* failure) {
    for (cudaEvent_t& event : events_) {
      if (!Succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                     "cudaEventCreateWithFlags", failure)) {
        return false;
      }
    }
    return true;
  }

  int64_t Record(cudaStream_t stream, DeviceFailure* failure) {
    if (!Succeeded(cudaEventRecord(Of(next_), stream), "cudaEventRecord", failure)) return -1;
    return next_++;
  }
  int Look(int64_t number, DeviceFailure* failure) const {
    const cudaError_t state = cudaEventQuery(Of(number));
    if (state == cudaErrorNotReady) return 0;
    return Succeeded(state, "cudaEventQuery", failure) ? 1 : -1;
  }
  cudaEvent_t Of(int64_t number) const {
    return events_[static_cast<size_t>(number) % events_.size()];
  }

 private:
  std::array<cudaEvent_t, 64> events_ = {};
  int64_t next_ = 0;
};

class LinkDeviceImpl;

class CopyStreamImpl final : public CopyStream {
 public:
  CopyStreamImpl(LinkDeviceImpl* device, int seat);
  ~CopyStreamImpl() override;

  bool Open(DeviceFailure* failure);
  bool After(int64_t mark, DeviceFailure* failure) override;
  int64_t Copy(void* to, const void* from, int64_t bytes, DeviceFailure* failure) override;
  int64_t Ticket(DeviceFailure* failure) override;
  int Look(int64_t ticket, DeviceFailure* failure) override;
  void* Handle(DeviceFailure* failure) override;
  char* trial() override { return trial_; }
  char* trial_host() override { return trial_host_; }

 private:
  LinkDeviceImpl* const device_;
  const int seat_;
  char *const trial_, *const trial_host_;
  cudaStream_t stream_ = nullptr;
  Places tickets_;
};

class LinkDeviceImpl final : public LinkDevice {
 public:
  LinkDeviceImpl(cudaStream_t stream, void* memory, int64_t bytes)
      : stream_(stream), memory_(static_cast<char*>(memory)), bytes_(bytes) {}
  ~LinkDeviceImpl() override {
    for (const Retired& stream : retired_) cudaStreamDestroy(stream.stream);
    if (host_trials_ != nullptr) cudaFreeHost(host_trials_);
    cudaFree(trials_);
  }

  bool Open(DeviceFailure* failure) {
    cudaDeviceProp properties;
    if (!Succeeded(cudaGetDevice(&index_), "cudaGetDevice", failure) ||
        !Succeeded(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties",
                   failure)) {
      return false;
    }
    char* to = uuid_ + std::snprintf(uuid_, sizeof(uuid_), "GPU-");
    for (size_t i = 0; i < sizeof(properties.uuid.bytes); ++i) {
      const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
      to += std::snprintf(
          to, 4, dash ? "-%02x" : "%02x",
          static_cast<unsigned>(static_cast<unsigned char>(properties.uuid.bytes[i])));
    }
    constexpr size_t kBytes = kMaxStreams * CopyStream::kTrialBytes;
    return Succeeded(cudaMalloc(&trials_, kBytes), "cudaMalloc", failure) &&
           Succeeded(cudaMallocHost(&host_trials_, kBytes), "cudaMallocHost", failure) &&
           marks_.Open(failure);
  }

  // Each thread has a device of its own.
  bool Bind(DeviceFailure* failure) const {
    return Succeeded(cudaSetDevice(index_), "cudaSetDevice", failure);
  }

  const char* uuid() const override { return uuid_; }
  char* memory() override { return memory_; }
  int64_t memory_bytes() const override { return bytes_; }

  int64_t Mark(DeviceFailure* failure) override {
    if (!Bind(failure)) return -1;
    const std::lock_guard<std::mutex> lock(mu_);
    return marks_.Record(stream_, failure);
  }
  int LookAtMark(int64_t mark, DeviceFailure* failure) override {
    const std::lock_guard<std::mutex> lock(mu_);
    return marks_.Look(mark, failure);
  }
  bool WaitForMark(int64_t mark, cudaStream_t stream, DeviceFailure* failure) {
    const std::lock_guard<std::mutex> lock(mu_);
    return Succeeded(cudaStreamWaitEvent(stream, marks_.Of(mark), 0), "cudaStreamWaitEvent",
                     failure);
  }

  CopyStream* OpenStream(DeviceFailure* failure) override {
    const int seat = TakeSeat();
    if (seat < 0) {
      std::snprintf(failure->text, sizeof(failure->text), "more than %d links", kMaxStreams);
      return nullptr;
    }
    auto stream = std::make_unique<CopyStreamImpl>(this, seat);
    return stream->Open(failure) ? stream.release() : nullptr;
  }
  char* TrialOf(int seat) const {
    return static_cast<char*>(trials_) + seat * CopyStream::kTrialBytes;
  }
  char* HostTrialOf(int seat) const {
    return static_cast<char*>(host_trials_) + seat * CopyStream::kTrialBytes;
  }
  // Of a stream that goes, or of none. One that still works keeps its seat until it is done.
  void GiveSeat(int seat, cudaStream_t stream) {
    const std::lock_guard<std::mutex> lock(mu_);
    retired_.push_back({stream, seat});
    Clear();
  }
  bool Idle() override {
    DeviceFailure ignored;
    const std::lock_guard<std::mutex> lock(mu_);
    if (!retired_.empty() && Bind(&ignored)) Clear();
    return retired_.empty();
  }

  bool Export(char (&handle)[kHandleBytes], DeviceFailure* failure) override {
    cudaIpcMemHandle_t exported;
    static_assert(sizeof(exported) == kHandleBytes);
    if (!Bind(failure) ||
        !Succeeded(cudaIpcGetMemHandle(&exported, memory_), "cudaIpcGetMemHandle", failure)) {
      return false;
    }
    std::memcpy(handle, &exported, sizeof(exported));
    return true;
  }
  char* Import(const char (&handle)[kHandleBytes], int64_t* bytes,
               DeviceFailure* failure) override {
    cudaIpcMemHandle_t imported;
    std::memcpy(&imported, handle, sizeof(imported));
    void* memory = nullptr;
    // The flag gives access to memory of another device, or says that there is none.
    if (!Bind(failure) ||
        !Succeeded(cudaIpcOpenMemHandle(&memory, imported, cudaIpcMemLazyEnablePeerAccess),
                   "cudaIpcOpenMemHandle", failure)) {
      return nullptr;
    }
    *bytes = BytesAt(memory, failure);
    if (*bytes >= 0) return static_cast<char*>(memory);
    Unimport(static_cast<char*>(memory));
    return nullptr;
  }
  void Unimport(char* memory) override {
    DeviceFailure ignored;  // what cannot be given back is gone with the device
    if (Bind(&ignored)) Succeeded(cudaIpcCloseMemHandle(memory), "", &ignored);
  }

 private:
  // An edge has at most a stream at either end, and a stage has at most four edges each way; those
  // of a job that is ending may still be there.
  static constexpr int kMaxStreams = 16;

  struct Retired {
    cudaStream_t stream;  // null: there was none
    int seat;
  };

  // Lets go of the streams that are done; with mu_ held, and the device the thread's.
  void Clear() {
    std::erase_if(retired_, [this](const Retired& gone) {
      // An error of the device's counts as done: nothing comes after it.
      if (gone.stream != nullptr && cudaStreamQuery(gone.stream) == cudaErrorNotReady) return false;
      if (gone.stream != nullptr) cudaStreamDestroy(gone.stream);
      seats_[static_cast<size_t>(gone.seat)] = false;
      return true;
    });
  }

  int TakeSeat() {
    const std::lock_guard<std::mutex> lock(mu_);
    for (size_t i = 0; i < seats_.size(); ++i) {
      if (!std::exchange(seats_[i], true)) return static_cast<int>(i);
    }
    return -1;
  }

  const cudaStream_t stream_;
  char* const memory_;
  const int64_t bytes_;
  int index_ = 0;
  char uuid_[48] = "";
  void *trials_ = nullptr, *host_trials_ = nullptr;  // given back with the device: cudaFree waits
  std::mutex mu_;
  Places marks_;                              // guarded by mu_
  std::array<bool, kMaxStreams> seats_ = {};  // guarded by mu_
  std::vector<Retired> retired_;              // guarded by mu_
};

CopyStreamImpl::CopyStreamImpl(LinkDeviceImpl* device, int seat)
    : device_(device),
      seat_(seat),
      trial_(device->TrialOf(seat)),
      trial_host_(device->HostTrialOf(seat)) {}

CopyStreamImpl::~CopyStreamImpl() {
  DeviceFailure ignored;
  device_->Bind(&ignored);
  device_->GiveSeat(seat_, stream_);
}

bool CopyStreamImpl::Open(DeviceFailure* failure) {
  return device_->Bind(failure) &&
         Succeeded(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                   "cudaStreamCreateWithFlags", failure) &&
         tickets_.Open(failure);
}

bool CopyStreamImpl::After(int64_t mark, DeviceFailure* failure) {
  return device_->Bind(failure) && device_->WaitForMark(mark, stream_, failure);
}

int64_t CopyStreamImpl::Copy(void* to, const void* from, int64_t bytes, DeviceFailure* failure) {
  if (!device_->Bind(failure) ||
      !Succeeded(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_),
                 "cudaMemcpyAsync", failure)) {
    return -1;
  }
  return tickets_.Record(stream_, failure);
}

int64_t CopyStreamImpl::Ticket(DeviceFailure* failure) {
  return device_->Bind(failure) ? tickets_.Record(stream_, failure) : -1;
}

int CopyStreamImpl::Look(int64_t ticket, DeviceFailure* failure) {
  return tickets_.Look(ticket, failure);
}

void* CopyStreamImpl::Handle(DeviceFailure* failure) {
  return device_->Bind(failure) ? stream_ : nullptr;
}

}  // namespace

std::unique_ptr<LinkDevice> OpenLinkDevice(cudaStream_t stream, void* memory, int64_t bytes,
                                           DeviceFailure* failure) {
  auto device = std::make_unique<LinkDeviceImpl>(stream, memory, bytes);
  if (!device->Open(failure)) return nullptr;
  return device;
}

}  // namespace headrace::cuda
