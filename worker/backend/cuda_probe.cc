#include "worker/backend/cuda_probe.h"

#include <dlfcn.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

// Of the driver API (cuda.h), which is not needed to build a worker.
constexpr int kNoDevice = 100, kStubLibrary = 34, kSystemDriverMismatch = 803;
constexpr int kMajorAttribute = 75, kMinorAttribute = 76;

struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*driver_version)(int*) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*device_name)(char*, int, int) = nullptr;
  int (*device_memory)(size_t*, int) = nullptr;
  int (*device_attribute)(int*, int, int) = nullptr;
  int (*error_string)(int, const char**) = nullptr;
};

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool FindAll(void* library, Driver* driver) {
  return Find(library, "cuInit", &driver->init) &&
         Find(library, "cuDriverGetVersion", &driver->driver_version) &&
         Find(library, "cuDeviceGetCount", &driver->device_count) &&
         Find(library, "cuDeviceGet", &driver->device_get) &&
         Find(library, "cuDeviceGetName", &driver->device_name) &&
         Find(library, "cuDeviceTotalMem_v2", &driver->device_memory) &&
         Find(library, "cuDeviceGetAttribute", &driver->device_attribute) &&
         Find(library, "cuGetErrorString", &driver->error_string);
}

std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

std::string Failure(const Driver& driver, const char* call, int error) {
  const char* text = nullptr;
  if (driver.error_string(error, &text) != 0 || text == nullptr) text = "unknown error";
  return absl::StrCat(call, " failed with error ", error, ": ", text);
}

// Fills in the devices; returns why there are none.
std::string FindDevices(const Driver& driver, std::vector<CudaDeviceName>* devices) {
  int count = 0;
  if (const int error = driver.device_count(&count); error != 0) {
    return Failure(driver, "cuDeviceGetCount", error);
  }
  if (count == 0) return "the driver sees no CUDA device";
  for (int i = 0; i < count; ++i) {
    CudaDeviceName device;
    int handle = 0;
    char name[256] = "";
    size_t bytes = 0;
    if (const int error = driver.device_get(&handle, i); error != 0) {
      devices->clear();
      return absl::StrCat("device ", i, ": ", Failure(driver, "cuDeviceGet", error));
    }
    driver.device_name(name, sizeof(name) - 1, handle);
    driver.device_memory(&bytes, handle);
    driver.device_attribute(&device.major, kMajorAttribute, handle);
    driver.device_attribute(&device.minor, kMinorAttribute, handle);
    device.name = name;
    device.memory_bytes = static_cast<int64_t>(bytes);
    devices->push_back(device);
  }
  return "";
}

}  // namespace

CudaProbe ProbeCuda(const std::string& library) {
  CudaProbe probe;
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const std::string why = dlerror();
    probe.why_none =
        absl::StrContains(why, "No such file")
            ? absl::StrCat("no NVIDIA driver is installed (", library, " is not found)")
            : absl::StrCat("the NVIDIA driver cannot be opened: ", why);
    return probe;
  }
  Driver driver;
  if (!FindAll(handle, &driver)) {
    probe.why_none = absl::StrCat(library, " is no CUDA driver: it lacks functions of one");
    return probe;
  }
  const int error = driver.init(0);
  driver.driver_version(&probe.driver_version);
  if (error == kStubLibrary) {
    probe.why_none = absl::StrCat(library, " is the toolkit's stub, not a driver");
  } else if (error == kNoDevice) {
    probe.why_none = "the driver sees no CUDA device";
  } else if (error == kSystemDriverMismatch) {
    probe.why_none = "the driver's library and its kernel module are of different versions";
  } else if (error != 0) {
    probe.why_none = Failure(driver, "cuInit", error);
  } else if (probe.driver_version < kOldestCudaDriver) {
    probe.why_none =
        absl::StrCat("the driver is too old: it supports CUDA ", Version(probe.driver_version),
                     ", needed is ", Version(kOldestCudaDriver));
  } else {
    probe.why_none = FindDevices(driver, &probe.devices);
  }
  return probe;
}

std::string Describe(const CudaProbe& probe) {
  if (probe.devices.empty()) return absl::StrCat("cuda: none: ", probe.why_none, "\n");
  std::string text = absl::StrCat("cuda: driver for CUDA ", Version(probe.driver_version), "\n");
  for (size_t i = 0; i < probe.devices.size(); ++i) {
    const CudaDeviceName& d = probe.devices[i];
    absl::StrAppend(&text, "cuda:", i, ": ", d.name, ", ", d.memory_bytes >> 20,
                    " MiB, compute capability ", d.major, ".", d.minor, "\n");
  }
  return text;
}

}  // namespace headrace
