// The part of the CUDA runtime API that Headrace uses, on host memory. Device memory is poisoned
// while no kernel or copy runs, so AddressSanitizer reports host code that touches it.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/fiber.h"

namespace headrace::emulation {
namespace {

struct Device {
  std::recursive_mutex mu;
  std::map<char*, size_t> allocations;
  int64_t bytes_in_use = 0;
  std::map<cudaStream_t, std::deque<std::function<void()>>> streams;
  std::map<std::string, int> calls;
  std::set<void*> registered;    // host memory
  std::set<cudaStream_t> asked;  // lazy ones that were asked once whether they are done
};
Device& device() {
  static auto* one = new Device;
  return *one;
}

struct Event {
  cudaStream_t stream = nullptr;
  bool recorded = false, done = true;
};

// Of device memory that other processes can import, its file; −1: none.
struct Shared {
  int fd = -1;
};
std::map<char*, Shared>& shared() {
  static auto* map = new std::map<char*, Shared>;
  return *map;
}
std::map<void*, size_t>& imported() {
  static auto* map = new std::map<void*, size_t>;
  return *map;
}

char* Map(int fd, size_t bytes) {
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}
// Null: there is no memory.
void* Allocate(size_t bytes) {
  void* p = nullptr;
  if (!options().shared_memory) return posix_memalign(&p, 256, bytes) == 0 ? p : nullptr;
  const int fd = memfd_create("emulated-cuda", MFD_CLOEXEC);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return nullptr;
  char* const mapped = Map(fd, bytes);
  shared()[mapped] = {fd};
  return mapped;
}
void Free(char* p, size_t bytes) {
  if (const auto file = shared().extract(p)) {
    munmap(p, bytes);
    close(file.mapped().fd);
  } else {
    std::free(p);
  }
}

void OpenDeviceMemory() {
  for (const auto& [data, bytes] : device().allocations) Unpoison(data, bytes);
}
void CloseDeviceMemory() {
  for (const auto& [data, bytes] : device().allocations) Poison(data, bytes);
}

void Drain(cudaStream_t stream) {
  auto& work = device().streams[stream];
  while (!work.empty()) {
    const std::function<void()> next = std::move(work.front());
    work.pop_front();
    next();
  }
}
void DrainAll() {
  for (auto& [stream, work] : device().streams) Drain(stream);
}

void Submit(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard<std::recursive_mutex> lock(device().mu);
  if (!options().lazy_streams) return work();
  if (stream == nullptr) DrainAll();  // the legacy stream waits for all others
  device().streams[stream].push_back(std::move(work));
}

// What a failed call of this thread answered, until cudaGetLastError: "not ready" too.
thread_local cudaError_t left_behind = cudaSuccess;
cudaError_t Answer(cudaError_t error) {
  if (error != cudaSuccess) left_behind = error;
  return error;
}

// Lazy streams are never done when first asked, as a device that has only begun.
bool IsBusy(cudaStream_t stream) {
  if (device().streams[stream].empty()) return false;
  if (device().asked.insert(stream).second) return true;
  device().asked.erase(stream);
  return false;
}

// What options() wants this call to answer.
cudaError_t Planned(const char* call) {
  const std::lock_guard<std::recursive_mutex> lock(device().mu);
  const int times = ++device().calls[call];
  return options().fail_call == call && times >= options().fail_after ? options().fail_error
                                                                      : cudaSuccess;
}
#define HEADRACE_PLANNED(call)                                                                \
  do {                                                                                        \
    if (const cudaError_t e = headrace::emulation::Planned(call); e != cudaSuccess) {         \
      return headrace::emulation::Answer(e);                                                  \
    }                                                                                         \
  } while (false)

cudaError_t Copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  Submit(stream, [=] {
    if (sticky_error() != cudaSuccess || bytes == 0) return;
    OpenDeviceMemory();
    std::memmove(to, from, bytes);
    CloseDeviceMemory();
  });
  return sticky_error();
}

}  // namespace

void Enqueue(cudaStream_t stream, const Grid& grid, void (*drop)(void*)) {
  Submit(stream, [=] {
    OpenDeviceMemory();
    RunGrid(grid);
    CloseDeviceMemory();
    drop(grid.context);
  });
}

void ForgetCalls() { device().calls.clear(); }

int imports() {
  const std::lock_guard<std::recursive_mutex> lock(device().mu);
  return static_cast<int>(imported().size());
}

}  // namespace headrace::emulation

using headrace::emulation::device;
using headrace::emulation::Event;
using Lock = std::lock_guard<std::recursive_mutex>;

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
  HEADRACE_PLANNED("cudaMalloc");
  const Lock lock(device().mu);
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  const int64_t wanted = device().bytes_in_use + static_cast<int64_t>(bytes);
  if (wanted <= headrace::emulation::options().memory_bytes) {
    *p = headrace::emulation::Allocate(bytes);
  }
  if (*p == nullptr) return headrace::emulation::Answer(cudaErrorMemoryAllocation);
  device().bytes_in_use = wanted;
  std::memset(*p, 0xff, bytes);
  device().allocations[static_cast<char*>(*p)] = bytes;
  headrace::emulation::CloseDeviceMemory();
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  const Lock lock(device().mu);
  if (p == nullptr) return cudaSuccess;
  headrace::emulation::DrainAll();
  const auto found = device().allocations.find(static_cast<char*>(p));
  if (found == device().allocations.end()) return cudaErrorInvalidValue;
  headrace::emulation::Unpoison(p, found->second);
  device().bytes_in_use -= static_cast<int64_t>(found->second);
  headrace::emulation::Free(found->first, found->second);
  device().allocations.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  const Lock lock(device().mu);
  *total = static_cast<size_t>(headrace::emulation::options().memory_bytes);
  *available = *total - static_cast<size_t>(device().bytes_in_use);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  HEADRACE_PLANNED("cudaMallocHost");
  return posix_memalign(p, 4096, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
// Host memory is host memory; what is pinned is remembered, to be given back once.
cudaError_t cudaHostRegister(void* p, size_t, unsigned) {
  HEADRACE_PLANNED("cudaHostRegister");
  const Lock lock(device().mu);
  return device().registered.insert(p).second ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaHostUnregister(void* p) {
  const Lock lock(device().mu);
  return device().registered.erase(p) > 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaFreeHost(void* p) {
  std::free(p);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  HEADRACE_PLANNED("cudaMemcpyAsync");
  return headrace::emulation::Copy(to, from, bytes, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const Lock lock(device().mu);
  headrace::emulation::DrainAll();
  headrace::emulation::Copy(to, from, bytes, nullptr);
  headrace::emulation::DrainAll();
  return headrace::emulation::sticky_error();
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  HEADRACE_PLANNED("cudaMemsetAsync");
  headrace::emulation::Submit(stream, [=] {
    headrace::emulation::OpenDeviceMemory();
    if (bytes > 0) std::memset(to, value, bytes);  // null is allowed then
    headrace::emulation::CloseDeviceMemory();
  });
  return headrace::emulation::sticky_error();
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const Lock lock(device().mu);
  headrace::emulation::DrainAll();
  const cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr);
  headrace::emulation::DrainAll();
  return error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  HEADRACE_PLANNED("cudaStreamCreateWithFlags");
  const Lock lock(device().mu);
  *stream = reinterpret_cast<cudaStream_t>(new char);
  device().streams[*stream];
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(device().mu);
  headrace::emulation::Drain(stream);
  device().streams.erase(stream);
  delete reinterpret_cast<char*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(device().mu);
  headrace::emulation::Drain(stream);
  return headrace::emulation::sticky_error();
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  HEADRACE_PLANNED("cudaStreamQuery");
  const Lock lock(device().mu);
  if (headrace::emulation::IsBusy(stream)) return headrace::emulation::Answer(cudaErrorNotReady);
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(device().mu);
  headrace::emulation::DrainAll();
  return headrace::emulation::sticky_error();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  HEADRACE_PLANNED("cudaEventCreateWithFlags");
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(device().mu);
  headrace::emulation::DrainAll();
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  HEADRACE_PLANNED("cudaEventRecord");
  const Lock lock(device().mu);
  auto* e = reinterpret_cast<Event*>(event);
  *e = {stream, true, false};
  headrace::emulation::Submit(stream, [=] { e->done = true; });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  HEADRACE_PLANNED("cudaStreamWaitEvent");
  const Lock lock(device().mu);
  auto* e = reinterpret_cast<Event*>(event);
  headrace::emulation::Submit(stream, [=] {
    if (e->recorded && !e->done) headrace::emulation::Drain(e->stream);
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  HEADRACE_PLANNED("cudaEventQuery");
  const Lock lock(device().mu);
  auto* e = reinterpret_cast<Event*>(event);
  if (e->recorded && !e->done) {
    if (headrace::emulation::IsBusy(e->stream)) {
      return headrace::emulation::Answer(cudaErrorNotReady);
    }
    headrace::emulation::Drain(e->stream);
  }
  return headrace::emulation::sticky_error();
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t error = headrace::emulation::sticky_error();
  return error != cudaSuccess ? error : headrace::emulation::left_behind;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  headrace::emulation::left_behind = cudaSuccess;
  if (headrace::emulation::sticky_error() != cudaErrorLaunchFailure) {
    headrace::emulation::sticky_error() = cudaSuccess;
  }
  return error;
}
cudaError_t cudaDeviceReset() {
  headrace::emulation::left_behind = cudaSuccess;
  headrace::emulation::sticky_error() = cudaSuccess;
  headrace::emulation::ForgetCalls();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  HEADRACE_PLANNED("cudaGetDeviceCount");
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device_index) {
  return device_index == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
// Its compute capability; everything else 0.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor
               ? headrace::emulation::options().capability
               : 0;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorNotSupported;
  headrace::emulation::AllowSharedBytes(kernel, static_cast<size_t>(value));
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device_index) {
  *device_index = 0;
  return cudaSuccess;
}
// Its UUID; everything else 0.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  HEADRACE_PLANNED("cudaGetDeviceProperties");
  *properties = {};
  std::memcpy(properties->uuid.bytes, "emulated-device", 15);
  properties->uuid.bytes[15] = static_cast<char>(headrace::emulation::options().gpu);
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
  HEADRACE_PLANNED("cudaIpcGetMemHandle");
  const Lock lock(device().mu);
  char* const base = static_cast<char*>(p);
  const auto file = headrace::emulation::shared().find(base);
  if (file == headrace::emulation::shared().end())
    return headrace::emulation::Answer(cudaErrorInvalidValue);
  std::memset(handle, 0, sizeof(*handle));
  std::snprintf(handle->reserved, sizeof(handle->reserved), "/proc/%d/fd/%d %zu", getpid(),
                file->second.fd, device().allocations[base]);
  return cudaSuccess;
}
// A real device refuses a handle of its own process; the emulated one maps it again.
cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t handle, unsigned) {
  HEADRACE_PLANNED("cudaIpcOpenMemHandle");
  char path[64] = "";
  size_t bytes = 0;
  if (std::sscanf(handle.reserved, "%63s %zu", path, &bytes) != 2) return cudaErrorInvalidValue;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return cudaErrorInvalidValue;
  *p = headrace::emulation::Map(fd, bytes);
  close(fd);
  if (*p == nullptr) return cudaErrorInvalidValue;
  const Lock lock(device().mu);
  headrace::emulation::imported()[*p] = bytes;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* p) {
  const Lock lock(device().mu);
  const auto found = headrace::emulation::imported().extract(p);
  if (!found) return cudaErrorInvalidValue;
  headrace::emulation::DrainAll();
  munmap(p, found.mapped());
  return cudaSuccess;
}

// Of the driver's functions one, by the runtime's leave.
static int cuMemGetAddressRange(unsigned long long* base, size_t* bytes, unsigned long long at) {
  constexpr int kInvalidValue = 1;
  const Lock lock(device().mu);
  const auto found = headrace::emulation::imported().find(reinterpret_cast<void*>(at));
  if (found == headrace::emulation::imported().end()) return kInvalidValue;
  *base = at;
  *bytes = found->second;
  return 0;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  HEADRACE_PLANNED("cudaGetDriverEntryPointByVersion");
  const bool known = std::strcmp(symbol, "cuMemGetAddressRange") == 0;
  *function = known ? reinterpret_cast<void*>(&cuMemGetAddressRange) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorUnknown:
      return "cudaErrorUnknown";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "emulated CUDA error";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorLaunchFailure) return headrace::emulation::last_report().c_str();
  if (error == cudaErrorIllegalAddress) return "an illegal memory access was encountered";
  return error == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(error);
}

}  // extern "C"
