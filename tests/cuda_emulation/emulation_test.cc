#include "tests/cuda_emulation/emulation_test.h"

#include <bit>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace::emulation {
namespace {

using ::testing::HasSubstr;

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  T* get() { return data_; }
  std::vector<T> Read() {
    std::vector<T> values(count_);
    cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  const size_t count_;
  T* data_ = nullptr;
};

class Emulation : public ::testing::Test {
 protected:
  void SetUp() override {
    cudaDeviceReset();
    options() = Options();
  }
  void TearDown() override { SetUp(); }
};

TEST_F(Emulation, RunsEveryThreadOfEveryBlockOnceInAnyOrder) {
  for (Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
    options().order = order;
    const dim3 blocks(3, 2, 2), threads(5, 3, 3);
    DeviceArray<int> out(12 * 45);
    ASSERT_EQ(NumberThreads(out.get(), blocks, threads, nullptr), cudaSuccess);
    const std::vector<int> values = out.Read();
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<int>(i));
  }
}

TEST_F(Emulation, ExchangesValuesAmongLanes) {
  DeviceArray<uint32_t> out(128);
  ASSERT_EQ(Collectives(out.get()), cudaSuccess);
  const std::vector<uint32_t> values = out.Read();
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(values[lane], 50u);
    EXPECT_EQ(values[32 + lane], (lane ^ 3) * 10);
    EXPECT_EQ(values[64 + lane], lane < 28 ? (lane + 4) * 10 : lane * 10);
    EXPECT_EQ(values[96 + lane], 0xaaaaaaaau);
  }
}

TEST_F(Emulation, MultipliesATileAsTensorCoresDo) {
  std::vector<uint16_t> a(256), b(128);
  const auto bf16 = [](int i) {  // small integers: products are exact
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(i)) >> 16);
  };
  for (int i = 0; i < 256; ++i) a[static_cast<size_t>(i)] = bf16(i * 7 % 13 - 6);
  for (int i = 0; i < 128; ++i) b[static_cast<size_t>(i)] = bf16(i * 5 % 11 - 5);
  for (bool through_ldmatrix : {false, true}) {
    DeviceArray<uint16_t> da(a), db(b);
    DeviceArray<float> dd(128);
    ASSERT_EQ(MultiplyTile(dd.get(), da.get(), db.get(), through_ldmatrix), cudaSuccess);
    const std::vector<float> d = dd.Read();
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        int want = 0;
        for (int k = 0; k < 16; ++k) {
          want += ((i * 16 + k) * 7 % 13 - 6) * ((k * 8 + j) * 5 % 11 - 5);
        }
        EXPECT_EQ(d[static_cast<size_t>(i * 8 + j)], static_cast<float>(want)) << i << " " << j;
      }
    }
  }
}

TEST_F(Emulation, GivesSharedMemoryThatHoldsNothing) {
  DeviceArray<int> out(1);
  ASSERT_EQ(SharedBeginsAsNan(out.get(), 64, 1000), cudaSuccess);
  EXPECT_EQ(out.Read()[0], 1);
}

TEST_F(Emulation, RefusesWhatADeviceRefuses) {
  DeviceArray<int> out(1);
  EXPECT_EQ(NumberThreads(out.get(), 1, 1025, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(NumberThreads(out.get(), dim3(1, 65536), 1, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(SharedBeginsAsNan(out.get(), 64, 49 << 10), cudaErrorInvalidValue) << "not asked for";
  options().memory_bytes = 1000;
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 1001), cudaErrorMemoryAllocation);
}

TEST_F(Emulation, OfLazyStreamsRunsWorkOnlyWhenSomethingWaits) {
  options().lazy_streams = true;
  cudaStream_t compute = nullptr, copy = nullptr;
  cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking);
  DeviceArray<float> x(std::vector<float>{1, 2, 3});
  std::vector<float> read(3, -1);
  ASSERT_EQ(AddOne(x.get(), 3, compute), cudaSuccess);
  // No event between the two streams: the copy overtakes the kernel.
  cudaMemcpyAsync(read.data(), x.get(), 12, cudaMemcpyDeviceToHost, copy);
  EXPECT_THAT(read, ::testing::Each(-1));
  cudaStreamSynchronize(copy);
  EXPECT_THAT(read, ::testing::ElementsAre(1, 2, 3));
  cudaEvent_t done = nullptr;
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  cudaEventRecord(done, compute);
  cudaStreamWaitEvent(copy, done, 0);
  cudaMemcpyAsync(read.data(), x.get(), 12, cudaMemcpyDeviceToHost, copy);
  cudaStreamSynchronize(copy);
  EXPECT_THAT(read, ::testing::ElementsAre(2, 3, 4));
  cudaEventDestroy(done);
  cudaStreamDestroy(compute);
  cudaStreamDestroy(copy);
}

TEST_F(Emulation, FailsTheCallItIsToldTo) {
  DeviceArray<float> x(3);
  options().fail_call = "cudaMemsetAsync";
  options().fail_after = 2;
  options().fail_error = cudaErrorUnknown;
  EXPECT_EQ(cudaMemsetAsync(x.get(), 0, 12, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(x.get(), 0, 12, nullptr), cudaErrorUnknown);
}

}  // namespace
}  // namespace headrace::emulation
