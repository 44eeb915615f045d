// A CUDA driver of which only as much exists as cuda_probe_test.cc needs. What it answers comes
// from the environment: FAKE_CUDA_INIT (an error), FAKE_CUDA_VERSION, FAKE_CUDA_DEVICES.
#include <cstdio>
#include <cstdlib>

namespace {

int Setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : otherwise;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return Setting("FAKE_CUDA_INIT", 0); }
int cuDriverGetVersion(int* version) {
  *version = Setting("FAKE_CUDA_VERSION", 13000);
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = Setting("FAKE_CUDA_DEVICES", 1);
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return Setting("FAKE_CUDA_DEVICE_ERROR", 0);
}
int cuDeviceGetName(char* name, int size, int device) {
  std::snprintf(name, static_cast<size_t>(size), "Difference Engine %d", device);
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{3} << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == 999 ? "unknown error of the fake" : nullptr;
  return *text != nullptr ? 0 : 1;
}

}  // extern "C"
