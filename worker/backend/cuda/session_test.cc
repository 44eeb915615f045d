#include "worker/backend/cuda/session.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/grid.h"

namespace headrace::cuda {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Gemm> ReferenceProducts(void*, size_t, bool, std::string*) {
  return CreateReferenceGemm();
}

class Sessions : public ::testing::Test {
 protected:
  void SetUp() override {
    cudaDeviceReset();
    emulation::options() = emulation::Options();
  }
  void TearDown() override { SetUp(); }
  std::unique_ptr<Session> Open(const SessionOptions& options) {
    return OpenSession(options, ReferenceProducts, &error_);
  }
  // Makes a call fail from now on.
  void Break(const char* call, cudaError_t error) {
    emulation::options().fail_call = call;
    emulation::options().fail_after = 0;
    emulation::options().fail_error = error;
  }
  std::string error_;
};

TEST_F(Sessions, ComputeOnMemoryTheyTook) {
  for (bool lazy : {false, true}) {
    emulation::options().lazy_streams = lazy;
    const auto session = Open({.memory_bytes = 1 << 20, .scratch_bytes = 1 << 16});
    ASSERT_NE(session, nullptr) << error_;
    auto* x = static_cast<float*>(session->memory());
    const std::vector<float> ones(100, 1);
    std::vector<float> read(100);
    ASSERT_TRUE(session->Write(x, ones.data(), 400));
    session->ops()->Add(x, x, x, 99);
    auto* sum = reinterpret_cast<double*>(x + 4096);
    double squared = 0;
    session->ops()->SquaredNorm(x, 100, sum);
    ASSERT_TRUE(session->Read(&squared, sum, 8));
    EXPECT_EQ(squared, 99 * 4 + 1);
    session->ops()->Add(x, x + 100, x, 100);  // what was not written is 0
    ASSERT_TRUE(session->Read(read.data(), x, 400));
    EXPECT_EQ(read[0], 2);
    EXPECT_EQ(read[99], 1);
    EXPECT_TRUE(session->Wait(1));
    EXPECT_STREQ(session->error(), "");
  }
}

TEST_F(Sessions, ThatDoNotFitSayHowMuchThereIsAndLeaveNothingBehind) {
  emulation::options().memory_bytes = 40 << 20;
  EXPECT_EQ(Open({.memory_bytes = 16 << 20, .scratch_bytes = 1 << 16}), nullptr);
  EXPECT_EQ(error_,
            "cudaMalloc of 33554432 bytes for cuBLASLt's workspace: cudaErrorMemoryAllocation: out "
            "of memory; 25100288 of the device's 41943040 bytes are free");
  EXPECT_EQ(Open({.memory_bytes = 64 << 20}), nullptr);
  EXPECT_THAT(error_, HasSubstr("for the arena"));
  EXPECT_THAT(error_, HasSubstr("41943040 of the device's 41943040 bytes are free"));
}

TEST_F(Sessions, OfDevicesThatDoNotExistAreRefused) {
  EXPECT_EQ(Open({.device = 1}), nullptr);
  EXPECT_EQ(error_, "device cuda:1 does not exist: there are 1");
  EXPECT_EQ(Open({.device = -1}), nullptr);
  Break("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  EXPECT_EQ(Open({}), nullptr);
  EXPECT_THAT(error_, HasSubstr("cudaGetDeviceCount"));
}

TEST_F(Sessions, ThatAreRefusedProductsSayWhy) {
  EXPECT_EQ(OpenSession(
                {},
                [](void*, size_t, bool, std::string* error) {
                  *error = "no products today";
                  return std::unique_ptr<Gemm>();
                },
                &error_),
            nullptr);
  EXPECT_EQ(error_, "no products today");
}

TEST_F(Sessions, RememberWhatFailedFirstAndDoNothingAfterwards) {
  const auto session = Open({.memory_bytes = 1 << 20, .scratch_bytes = 64});
  ASSERT_NE(session, nullptr) << error_;
  auto* x = static_cast<float*>(session->memory());
  session->ops()->SquaredNorm(x, 1000000, reinterpret_cast<double*>(x + 1000));
  EXPECT_STREQ(session->error(), "SquaredNorms: needs 256 bytes of scratch memory, has 64");
  session->ops()->Add(x, x, x, 10);
  EXPECT_FALSE(session->Write(x, x, 4));
  EXPECT_STREQ(session->error(), "SquaredNorms: needs 256 bytes of scratch memory, has 64");
}

TEST_F(Sessions, OfALostDeviceSayWhatTheyWereDoing) {
  const auto session = Open({.memory_bytes = 1 << 20, .scratch_bytes = 1 << 16});
  ASSERT_NE(session, nullptr) << error_;
  std::vector<float> read(10);
  Break("cudaStreamQuery", cudaErrorUnknown);
  EXPECT_FALSE(session->Read(read.data(), session->memory(), 40));
  EXPECT_THAT(session->error(), HasSubstr("waiting for the device"));
}

TEST_F(Sessions, DoNotWaitForeverForADevice) {
  const auto session = Open({.memory_bytes = 1 << 20, .scratch_bytes = 1 << 16});
  ASSERT_NE(session, nullptr) << error_;
  Break("cudaStreamQuery", cudaErrorNotReady);
  EXPECT_FALSE(session->Wait(0.01));
  EXPECT_THAT(session->error(), HasSubstr("has not done what it was told"));
}

}  // namespace
}  // namespace headrace::cuda
