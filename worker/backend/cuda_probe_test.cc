#include "worker/backend/cuda_probe.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

class CudaProbing : public ::testing::Test {
 protected:
  ~CudaProbing() override {
    for (const char* name :
         {"FAKE_CUDA_INIT", "FAKE_CUDA_VERSION", "FAKE_CUDA_DEVICES", "FAKE_CUDA_DEVICE_ERROR"}) {
      unsetenv(name);
    }
  }
  std::string Why(const char* name, const char* value) {
    setenv(name, value, 1);
    const CudaProbe probe = ProbeCuda(HEADRACE_FAKE_CUDA_DRIVER);
    EXPECT_TRUE(probe.devices.empty());
    unsetenv(name);
    return probe.why_none;
  }
};

TEST_F(CudaProbing, FindsEachDeviceOfADriver) {
  setenv("FAKE_CUDA_DEVICES", "2", 1);
  const CudaProbe probe = ProbeCuda(HEADRACE_FAKE_CUDA_DRIVER);
  ASSERT_EQ(probe.devices.size(), 2u) << probe.why_none;
  EXPECT_EQ(probe.devices[1].name, "Difference Engine 1");
  EXPECT_EQ(probe.devices[1].memory_bytes, int64_t{3} << 30);
  EXPECT_EQ(probe.devices[1].major, 9);
  EXPECT_EQ(Describe(probe),
            "cuda: driver for CUDA 13.0\n"
            "cuda:0: Difference Engine 0, 3072 MiB, compute capability 9.0\n"
            "cuda:1: Difference Engine 1, 3072 MiB, compute capability 9.0\n");
}

TEST_F(CudaProbing, SaysWhyThereIsNone) {
  const CudaProbe none = ProbeCuda("libno-such-driver.so.1");
  EXPECT_EQ(none.why_none, "no NVIDIA driver is installed (libno-such-driver.so.1 is not found)");
  EXPECT_EQ(Describe(none), "cuda: none: " + none.why_none + "\n");
  EXPECT_THAT(ProbeCuda("libm.so.6").why_none, HasSubstr("libm.so.6 is no CUDA driver"));
  EXPECT_EQ(Why("FAKE_CUDA_DEVICES", "0"), "the driver sees no CUDA device");
  EXPECT_EQ(Why("FAKE_CUDA_INIT", "100"), "the driver sees no CUDA device");
  EXPECT_THAT(Why("FAKE_CUDA_INIT", "34"), HasSubstr("stub"));
  EXPECT_THAT(Why("FAKE_CUDA_INIT", "803"), HasSubstr("different versions"));
  EXPECT_EQ(Why("FAKE_CUDA_INIT", "999"),
            "cuInit failed with error 999: unknown error of the fake");
  EXPECT_EQ(Why("FAKE_CUDA_VERSION", "12040"),
            "the driver is too old: it supports CUDA 12.4, needed is 13.0");
  EXPECT_EQ(Why("FAKE_CUDA_DEVICE_ERROR", "999"),
            "device 0: cuDeviceGet failed with error 999: unknown error of the fake");
}

TEST_F(CudaProbing, OfThisMachineAnswers) {
  const CudaProbe probe = ProbeCuda();
  EXPECT_EQ(probe.devices.empty(), !probe.why_none.empty()) << Describe(probe);
}

}  // namespace
}  // namespace headrace
