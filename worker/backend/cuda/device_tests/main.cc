// Runs the tests on the first device; where there is none says why and exits with 77, which ctest
// and tests/gpu/check count as skipped.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "gtest/gtest.h"

namespace {

constexpr int kExitSkipped = 77;

// A kernel that failed spoils the device for everything after it: the first report is the one to
// read, so nothing else runs.
class StopAtALostDevice : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const cudaError_t error = cudaDeviceSynchronize();
    if (error == cudaSuccess) return;
    std::printf("%s.%s lost the device: %s: %s\n", test.test_suite_name(), test.name(),
                cudaGetErrorName(error), cudaGetErrorString(error));
    std::fflush(stdout);
    std::_Exit(1);
  }
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (::testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  int count = 0;
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess || count == 0) {
    std::printf("skipped: there is no CUDA device: %s\n", cudaGetErrorString(error));
    return kExitSkipped;
  }
  std::printf("on %s, compute capability %d.%d\n", properties.name, properties.major,
              properties.minor);
  ::testing::UnitTest::GetInstance()->listeners().Append(new StopAtALostDevice);
  return RUN_ALL_TESTS();
}
