#include "worker/backend/cuda/session.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <memory>
#include <string>
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

constexpr int64_t kProductBytes = 1 << 12, kScratchBytes = 1 << 16;
constexpr int64_t kTrialsOfLinks = 64 << 10;  // beside the plan, for trials of links
constexpr SessionOptions kOptions = {.memory_bytes = 1 << 20,
                                     .product_bytes = kProductBytes,
                                     .scratch_bytes = kScratchBytes,
                                     .pinned_bytes = 1 << 12};

class Sessions : public ::testing::Test {
 protected:
  void SetUp() override {
    cudaDeviceReset();
    emulation::options() = emulation::Options();
  }
  void TearDown() override { SetUp(); }
  std::unique_ptr<Session> Open(const SessionOptions& options = kOptions) {
    return OpenSession(options, ReferenceProducts, &failure_);
  }
  std::string error() const { return failure_.text; }
  // Behind what is the ops' own.
  static float* Floats(Session* session) {
    return static_cast<float*>(session->memory()) + (kProductBytes + kScratchBytes) / 4;
  }
  // Makes a call fail from now on.
  void Break(const char* call, cudaError_t error) {
    emulation::options().fail_call = call;
    emulation::options().fail_after = 0;
    emulation::options().fail_error = error;
  }
  Failure failure_ = {};
};

TEST_F(Sessions, ComputeOnMemoryTheyTook) {
  for (bool lazy : {false, true}) {
    emulation::options().lazy_streams = lazy;
    const auto session = Open();
    ASSERT_NE(session, nullptr) << error();
    float* const x = Floats(session.get());
    const std::vector<float> ones(100, 1);
    std::vector<float> read(100);
    ASSERT_TRUE(session->Write(x, ones.data(), 400, 1));
    session->ops()->Add(x, x, x, 99);
    session->ops()->Add(x, x + 100, x, 100);  // what was not written is 0
    ASSERT_TRUE(session->Read(read.data(), x, 400, 1));
    EXPECT_EQ(read[0], 2);
    EXPECT_EQ(read[99], 1);
    EXPECT_TRUE(session->Wait(1));
    EXPECT_STREQ(session->error(), "");
    EXPECT_FALSE(session->lost());
  }
}

// Pieces of pinned memory take turns: what is larger than all of them, and many that are small, must
// not be overwritten before they have been copied.
TEST_F(Sessions, CopyWhatIsLargerThanTheirPiecesAndManySmallThings) {
  for (bool lazy : {false, true}) {
    emulation::options().lazy_streams = lazy;
    SessionOptions options = kOptions;
    options.memory_bytes = 16 << 20;
    const auto session = Open(options);
    ASSERT_NE(session, nullptr) << error();
    float* const x = Floats(session.get());
    std::vector<float> sent((9 << 20) / 4 + 3), read(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<float>(i);
    const auto bytes = static_cast<int64_t>(sent.size() * 4);
    ASSERT_TRUE(session->Write(x, sent.data(), bytes, 1));
    for (size_t i = 0; i < 20; ++i) {
      const float value = -static_cast<float>(i);
      ASSERT_TRUE(session->Write(x + i, &value, 4, 1));
      sent[i] = value;
    }
    ASSERT_TRUE(session->Read(read.data(), x, bytes, 1));
    EXPECT_EQ(read, sent);
  }
}

TEST_F(Sessions, CopyFromAndToPinnedMemoryAtOnce) {
  const auto session = Open();
  ASSERT_NE(session, nullptr) << error();
  auto* const host = static_cast<float*>(session->pinned());
  host[0] = 5;
  ASSERT_TRUE(session->Write(Floats(session.get()), host, 4, 1));
  ASSERT_TRUE(session->Read(host + 1, Floats(session.get()), 4, 1));
  EXPECT_EQ(host[1], 5);
}

TEST_F(Sessions, ThatDoNotFitSayHowMuchThereIsAndLeaveNothingBehind) {
  emulation::options().memory_bytes = 40 << 20;
  EXPECT_EQ(Open({.memory_bytes = 64 << 20}), nullptr);
  EXPECT_EQ(error(),
            "cudaMalloc of 67108864 bytes: cudaErrorMemoryAllocation: out of memory; 41943040 of the "
            "device's 41943040 bytes are free");
  EXPECT_TRUE(failure_.no_memory);
  EXPECT_FALSE(failure_.lost);
  Break("cudaMallocHost", cudaErrorMemoryAllocation);
  EXPECT_EQ(Open(), nullptr);
  EXPECT_THAT(error(), HasSubstr("cudaMallocHost of 4096 bytes of pinned host memory"));
  EXPECT_TRUE(failure_.no_memory);
  emulation::options().fail_call = "";
  const int64_t left = (40 << 20) - kTrialsOfLinks;
  EXPECT_NE(Open({.memory_bytes = left, .product_bytes = 256, .scratch_bytes = 256}), nullptr);
}

// Whatever fails while a session opens, its 1st, 2nd … time: it is named, and what was taken until
// then is given back (host memory and events: AddressSanitizer's build tells).
TEST_F(Sessions, LeaveNothingBehindWhicheverCallFails) {
  for (const char* call : {"cudaStreamCreateWithFlags", "cudaMalloc", "cudaMemsetAsync",
                           "cudaMallocHost", "cudaEventCreateWithFlags"}) {
    int failed = 0;
    for (; failed < 100; ++failed) {
      SetUp();
      Break(call, cudaErrorUnknown);
      emulation::options().fail_after = failed + 1;
      if (Open() != nullptr) break;
      EXPECT_THAT(error(), HasSubstr(call));
      size_t available = 0, total = 0;
      ASSERT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
      EXPECT_EQ(available, total) << call << ", time " << failed + 1;
    }
    EXPECT_GT(failed, 0) << call;
    EXPECT_LT(failed, 100) << call;
  }
}

TEST_F(Sessions, PinTheCallersMemoryAndTellHowMuchIsPinned) {
  constexpr int64_t kPieces = 4 << 20;
  std::vector<float> shared(1000, 3);
  SessionOptions options = kOptions;
  options.host = shared.data();
  options.host_bytes = 4000;
  {
    const auto session = Open(options);
    ASSERT_NE(session, nullptr) << error();
    EXPECT_EQ(session->pinned_bytes(), kOptions.pinned_bytes + 4000 + kPieces);
    ASSERT_TRUE(session->Write(Floats(session.get()), shared.data(), 4000, 1));
    ASSERT_TRUE(session->Read(shared.data() + 500, Floats(session.get()), 4, 1));
    EXPECT_EQ(shared[500], 3);
  }
  EXPECT_EQ(cudaHostUnregister(shared.data()), cudaErrorInvalidValue) << "it was given back";
  Break("cudaHostRegister", cudaErrorNotSupported);
  const auto session = Open(options);
  ASSERT_NE(session, nullptr) << error();
  EXPECT_EQ(session->pinned_bytes(), kOptions.pinned_bytes + kPieces);
}

TEST_F(Sessions, OfDevicesThatDoNotExistAreRefused) {
  EXPECT_EQ(Open({.device = 1}), nullptr);
  EXPECT_EQ(error(), "device cuda:1 does not exist: there are 1");
  EXPECT_EQ(Open({.device = -1}), nullptr);
  Break("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  EXPECT_EQ(Open({}), nullptr);
  EXPECT_THAT(error(), HasSubstr("cudaGetDeviceCount"));
}

TEST_F(Sessions, InBf16WantADeviceThatMultipliesIt) {
  emulation::options().capability = 7;
  SessionOptions options = kOptions;
  EXPECT_NE(Open(options), nullptr);
  options.bf16 = true;
  EXPECT_EQ(Open(options), nullptr);
  EXPECT_EQ(error(), "precision bf16 needs a device of compute capability 8.0; this one has 7.x");
}

TEST_F(Sessions, ThatAreRefusedProductsSayWhy) {
  EXPECT_EQ(OpenSession(
                kOptions,
                [](void*, size_t, bool, std::string* error) {
                  *error = "no products today";
                  return std::unique_ptr<Gemm>();
                },
                &failure_),
            nullptr);
  EXPECT_EQ(error(), "no products today");
}

TEST_F(Sessions, RememberWhatFailedFirst) {
  SessionOptions options = kOptions;
  options.scratch_bytes = 0;
  const auto session = Open(options);
  ASSERT_NE(session, nullptr) << error();
  float* const x = Floats(session.get());
  session->ops()->LinearBackwardWeight(x, x, x + 1000, x + 2000, 8, 8, 8);
  const std::string first = session->error();
  EXPECT_THAT(first, HasSubstr("BiasGradient: needs 256 bytes of scratch memory, has 0"));
  session->ops()->Add(x, x, x, 10);
  EXPECT_FALSE(session->Write(x, x, 4, 1));
  EXPECT_EQ(session->error(), first);
  EXPECT_FALSE(session->lost()) << "nothing is wrong with the device";
}

TEST_F(Sessions, OfALostDeviceSayWhatTheyWereDoingAndThatItIsLost) {
  const auto session = Open();
  ASSERT_NE(session, nullptr) << error();
  std::vector<float> read(10);
  Break("cudaStreamQuery", cudaErrorIllegalAddress);
  EXPECT_FALSE(session->Read(read.data(), session->memory(), 40, 1));
  EXPECT_STREQ(session->error(),
               "copying 40 bytes from the device: cudaErrorIllegalAddress: an illegal memory access "
               "was encountered");
  EXPECT_TRUE(session->lost());
  EXPECT_EQ(Open({.device = 1}), nullptr);
  EXPECT_TRUE(failure_.lost) << "nor can another session be opened";
}

TEST_F(Sessions, DoNotWaitForeverForADevice) {
  const auto session = Open();
  ASSERT_NE(session, nullptr) << error();
  Break("cudaStreamQuery", cudaErrorNotReady);
  EXPECT_FALSE(session->Wait(0.01));
  EXPECT_THAT(session->error(), HasSubstr("has not done what it was told"));
  EXPECT_TRUE(session->lost());
}

// A session whose memory is to be given back: an earlier error does not say that the device is
// done.
TEST_F(Sessions, WaitForTheDeviceAfterAnErrorToo) {
  SessionOptions options = kOptions;
  options.scratch_bytes = 0;
  const auto session = Open(options);
  ASSERT_NE(session, nullptr) << error();
  float* const x = Floats(session.get());
  session->ops()->LinearBackwardWeight(x, x, x + 1000, x + 2000, 8, 8, 8);
  const std::string first = session->error();
  ASSERT_NE(first, "");
  EXPECT_FALSE(session->Wait(1));
  EXPECT_FALSE(session->lost());
  Break("cudaStreamQuery", cudaErrorNotReady);
  EXPECT_FALSE(session->Wait(0.01));
  EXPECT_TRUE(session->lost());
  EXPECT_EQ(session->error(), first);
}

// A link has given up on a copy that does not end, and compute asks for nothing any more.
TEST_F(Sessions, WaitForWhatLinksLeftUnderWay) {
  emulation::options().lazy_streams = true;
  const auto session = Open();
  ASSERT_NE(session, nullptr) << error();
  ASSERT_TRUE(session->Wait(1));
  DeviceFailure failure;
  std::unique_ptr<CopyStream> stream(session->links()->OpenStream(&failure));
  ASSERT_NE(stream, nullptr) << failure.text;
  ASSERT_GE(stream->Copy(stream->trial(), stream->trial_host(), 8, &failure), 0);
  stream.reset();
  EXPECT_FALSE(session->lost());
  EXPECT_TRUE(session->Wait(1));
  EXPECT_TRUE(session->links()->Idle());
}

TEST_F(Sessions, FormRotaryTablesWithoutWaitingForever) {
  const auto session = Open();
  ASSERT_NE(session, nullptr) << error();
  float* const x = Floats(session.get());
  session->ops()->RopeTable(x, x + 6, 3, 4, 100.0);
  std::vector<float> read(12);
  ASSERT_TRUE(session->Read(read.data(), x, 48, 1)) << session->error();
  for (int t = 0; t < 3; ++t) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_FLOAT_EQ(read[t * 2 + i], std::cos(t * std::pow(100.0, -i / 2.0)));
      EXPECT_FLOAT_EQ(read[6 + t * 2 + i], std::sin(t * std::pow(100.0, -i / 2.0)));
    }
  }
  Break("cudaMallocHost", cudaErrorMemoryAllocation);
  session->ops()->RopeTable(x, x + 6, 3, 4, 100.0);
  EXPECT_THAT(session->error(), HasSubstr("RopeTable: cudaErrorMemoryAllocation"));
}

TEST_F(Sessions, AreProbedByAKernel) {
  DeviceReport report = {};
  emulation::options().memory_bytes = 40 << 20;
  ASSERT_TRUE(ProbeSession(0, &report, &failure_)) << error();
  EXPECT_EQ(report.free_bytes, 40 << 20);
  EXPECT_EQ(report.total_bytes, 40 << 20);
  EXPECT_EQ(report.major, 9);
  EXPECT_FALSE(ProbeSession(1, &report, &failure_));
  EXPECT_EQ(error(), "device cuda:1 does not exist: there are 1");
  Break("cudaStreamQuery", cudaErrorLaunchFailure);
  EXPECT_FALSE(ProbeSession(0, &report, &failure_));
  EXPECT_THAT(error(), HasSubstr("a kernel: "));
  EXPECT_TRUE(failure_.lost);
}

}  // namespace
}  // namespace headrace::cuda
