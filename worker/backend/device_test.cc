#include "worker/backend/device.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/measure.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A folder that looks like the parts of / that the probe reads.
class Device : public ::testing::Test {
 protected:
  Device() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = (fs::path(::testing::TempDir()) / (std::string("headrace_device_") + info->name()))
                .string();
    fs::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:       24000000 kB\nMemAvailable:   1000 kB\n");
    Write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Babbage Engine 2\n");
  }
  ~Device() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  int64_t Available() {
    const auto info = ProbeDevice("auto", root_);
    return info.ok() ? info->available_bytes : -1;
  }

  std::string root_;
};

TEST_F(Device, IsNamedByTheProcessorAndHasTheAvailableMemory) {
  const auto info = ProbeDevice("cpu", root_);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->kind, "cpu");
  EXPECT_EQ(info->name, "Babbage Engine 2");
  EXPECT_EQ(info->available_bytes, 1000 * 1024);
}

TEST_F(Device, WithoutAModelNameIsCalledCpu) {
  Write("/proc/cpuinfo", "processor\t: 0\n");
  EXPECT_EQ(ProbeDevice("cpu", root_)->name, "cpu");
}

TEST_F(Device, HasNoMoreMemoryThanItsControlGroup) {
  Write("/proc/self/cgroup", "0::/system/headrace\n");
  Write("/sys/fs/cgroup/system/headrace/memory.max", "max\n");
  EXPECT_EQ(Available(), 1000 * 1024);
  Write("/sys/fs/cgroup/system/headrace/memory.max", "500000\n");
  EXPECT_EQ(Available(), 500000);
  Write("/sys/fs/cgroup/system/memory.max", "300000\n");
  EXPECT_EQ(Available(), 300000) << "the group above has a lower limit";
}

TEST_F(Device, ReadsTheOlderControlGroupsToo) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/1\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "400000\n");
  EXPECT_EQ(Available(), 400000);
}

TEST_F(Device, ReadsALimitOnTheRootOfAContainer) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "200000\n");
  EXPECT_EQ(Available(), 200000);
}

TEST_F(Device, OfAnotherKindIsRefusedByName) {
  for (const char* device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "CUDA"}) {
    const absl::Status status = ProbeDevice(device, root_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << device;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("'") + device + "'"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("auto, cpu, cuda, cuda:N or sim:"));
  }
}

// Whoever asks for any device is told in a note what whoever asks for this one is told in an error.
TEST_F(Device, OfCudaIsRefusedInTheWordsInWhichAutoPassesItOver) {
  const std::vector<std::string> no_module = {"/no/such/libheadrace_cuda.so"};
  for (const char* driver : {"libno-such-driver.so.1", HEADRACE_FAKE_CUDA_DRIVER}) {
    const auto any = ProbeDevice("auto", root_, driver, no_module);
    ASSERT_TRUE(any.ok()) << any.status();
    EXPECT_EQ(any->kind, "cpu");
    EXPECT_NE(any->note, "");
    const absl::Status status = ProbeDevice("cuda", root_, driver, no_module).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(), "device 'cuda': " + any->note);
  }
  EXPECT_EQ(ProbeDevice("auto", root_, "libno-such-driver.so.1")->note,
            "there is no CUDA device: no NVIDIA driver is installed (libno-such-driver.so.1 is not "
            "found)");
  EXPECT_EQ(ProbeDevice("auto", root_, HEADRACE_FAKE_CUDA_DRIVER, no_module)->note,
            "cuda:0 (Difference Engine 0) cannot be computed on: the CUDA module is not installed: "
            "there is no /no/such/libheadrace_cuda.so");
  EXPECT_THAT(ProbeDevice("auto", root_, HEADRACE_FAKE_CUDA_DRIVER,
                          {no_module[0], HEADRACE_FAKE_CUDA_DRIVER})
                  ->note,
              HasSubstr("is no CUDA module of Headrace"));
  EXPECT_THAT(
      ProbeDevice("auto", root_, HEADRACE_FAKE_CUDA_DRIVER, {root_ + "/proc/meminfo"})->note,
      HasSubstr("the CUDA module cannot be opened: "));
  EXPECT_EQ(ProbeDevice("cuda:1", root_, HEADRACE_FAKE_CUDA_DRIVER).status().message(),
            "device 'cuda:1': there is no CUDA device 1, only 1");
  EXPECT_EQ(ProbeDevice("cpu", root_, HEADRACE_FAKE_CUDA_DRIVER)->note, "");
}

TEST_F(Device, WithoutMeminfoIsAnError) {
  Write("/proc/meminfo", "MemTotal: 5 kB\n");
  EXPECT_EQ(ProbeDevice("cpu", root_).status().code(), absl::StatusCode::kInternal);
}

TEST(ThisDevice, CanBeProbedAndMeasured) {
  const auto info = ProbeDevice("auto");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GT(info->available_bytes, 1 << 20);
  EXPECT_GT(MeasureFlops(1), 1e8);
}

}  // namespace
}  // namespace headrace
