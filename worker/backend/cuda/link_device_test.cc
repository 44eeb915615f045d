#include "worker/backend/cuda/link_device.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/grid.h"

namespace headrace::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBytes = 1 << 16;

class LinkDevices : public ::testing::Test {
 protected:
  void SetUp() override { Reset(); }
  void TearDown() override {
    device_.reset();
    if (compute_ != nullptr) cudaStreamDestroy(compute_);
    cudaFree(memory_);
    Reset();
  }
  static void Reset() {
    cudaDeviceReset();
    emulation::options() = emulation::Options();
  }
  static void Break(const char* call, cudaError_t error = cudaErrorUnknown) {
    emulation::options().fail_call = call;
    emulation::options().fail_after = 0;
    emulation::options().fail_error = error;
  }
  void Open() {
    ASSERT_EQ(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory_, kBytes), cudaSuccess);
    ASSERT_EQ(cudaMemset(memory_, 0, kBytes), cudaSuccess);
    device_ = OpenLinkDevice(compute_, memory_, kBytes, &failure_);
    ASSERT_NE(device_, nullptr) << failure_.text;
  }
  std::unique_ptr<CopyStream> Stream() {
    return std::unique_ptr<CopyStream>(device_->OpenStream(&failure_));
  }
  // Looks until the ticket is reached; the emulated device gets on when it is asked.
  int Await(CopyStream* stream, int64_t ticket) {
    int state = 0;
    for (int i = 0; i < 100 && state == 0; ++i) state = stream->Look(ticket, &failure_);
    return state;
  }
  std::string Read(CopyStream* stream, const void* from, int64_t bytes) {
    std::string host(static_cast<size_t>(bytes), '\0');
    EXPECT_EQ(Await(stream, stream->Copy(host.data(), from, bytes, &failure_)), 1);
    return host;
  }

  cudaStream_t compute_ = nullptr;
  void* memory_ = nullptr;
  DeviceFailure failure_;
  std::unique_ptr<LinkDevice> device_;
};

TEST_F(LinkDevices, CopyInAndOutOnQueuesOfTheirOwn) {
  for (const bool lazy : {false, true}) {
    TearDown();
    compute_ = nullptr;
    memory_ = nullptr;
    emulation::options().lazy_streams = lazy;
    Open();
    const auto one = Stream(), other = Stream();
    char* const at = device_->memory() + 256;
    const int64_t ticket = one->Copy(at, "headrace", 8, &failure_);
    ASSERT_GE(ticket, 0) << failure_.text;
    EXPECT_EQ(Await(one.get(), ticket), 1);
    EXPECT_EQ(Await(other.get(), other->Copy(other->trial(), at, 8, &failure_)), 1);
    EXPECT_EQ(Read(other.get(), other->trial(), 8), "headrace");
    EXPECT_NE(one->trial(), other->trial());
    EXPECT_NE(one->Handle(&failure_), other->Handle(&failure_));
  }
}

TEST_F(LinkDevices, WaitForWhatComputeWasToldBeforeAMark) {
  emulation::options().lazy_streams = true;
  Open();
  const auto stream = Stream();
  ASSERT_EQ(cudaMemsetAsync(memory_, 'b', 8, compute_), cudaSuccess);
  const int64_t mark = device_->Mark(&failure_);
  ASSERT_GE(mark, 0);
  ASSERT_TRUE(stream->After(mark, &failure_));
  EXPECT_EQ(Read(stream.get(), memory_, 8), "bbbbbbbb");
  EXPECT_EQ(device_->LookAtMark(mark, &failure_), 1);
}

// More places than there are events: an old one is reached when a later one is.
TEST_F(LinkDevices, RememberOldTicketsAndMarks) {
  Open();
  const auto stream = Stream();
  const int64_t first = stream->Copy(memory_, "x", 1, &failure_), mark = device_->Mark(&failure_);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(stream->Ticket(&failure_), first + i + 1);
    EXPECT_EQ(device_->Mark(&failure_), mark + i + 1);
  }
  EXPECT_EQ(Await(stream.get(), first), 1);
  EXPECT_EQ(device_->LookAtMark(mark, &failure_), 1);
}

TEST_F(LinkDevices, AreNamedByTheirUuid) {
  emulation::options().gpu = 7;
  Open();
  EXPECT_STREQ(device_->uuid(), "GPU-656d756c-6174-6564-2d64-657669636507");
}

TEST_F(LinkDevices, LetOthersReachTheirMemory) {
  emulation::options().shared_memory = true;
  Open();
  const auto stream = Stream();
  char handle[LinkDevice::kHandleBytes];
  ASSERT_TRUE(device_->Export(handle, &failure_)) << failure_.text;
  int64_t bytes = 0;
  char* const seen = device_->Import(handle, &bytes, &failure_);
  ASSERT_NE(seen, nullptr) << failure_.text;
  EXPECT_EQ(bytes, kBytes) << "what the driver knows, not what the other says";
  EXPECT_NE(seen, device_->memory());
  ASSERT_EQ(Await(stream.get(), stream->Copy(seen + 512, "over there", 10, &failure_)), 1);
  EXPECT_EQ(Read(stream.get(), device_->memory() + 512, 10), "over there");
  device_->Unimport(seen);
  Break("cudaGetDriverEntryPointByVersion");
  EXPECT_EQ(device_->Import(handle, &bytes, &failure_), nullptr);
  EXPECT_THAT(failure_.text, HasSubstr("cudaGetDriverEntryPointByVersion: cudaErrorUnknown"));
  EXPECT_EQ(emulation::imports(), 0) << "and nothing stays open";
  std::memset(handle, 'x', sizeof(handle));
  EXPECT_EQ(device_->Import(handle, &bytes, &failure_), nullptr);
  EXPECT_STREQ(failure_.text, "cudaIpcOpenMemHandle: cudaErrorInvalidValue: cudaErrorInvalidValue");
}

TEST_F(LinkDevices, SayWhichCallFailed) {
  Open();
  const auto stream = Stream();
  Break("cudaMemcpyAsync");
  EXPECT_EQ(stream->Copy(memory_, "x", 1, &failure_), -1);
  EXPECT_STREQ(failure_.text, "cudaMemcpyAsync: cudaErrorUnknown: cudaErrorUnknown");
  Break("cudaEventRecord");
  EXPECT_EQ(stream->Ticket(&failure_), -1);
  EXPECT_THAT(failure_.text, HasSubstr("cudaEventRecord: "));
  EXPECT_EQ(device_->Mark(&failure_), -1);
  Break("cudaStreamWaitEvent");
  EXPECT_FALSE(stream->After(0, &failure_));
  EXPECT_THAT(failure_.text, HasSubstr("cudaStreamWaitEvent: "));
  Break("cudaEventQuery");
  EXPECT_EQ(stream->Look(0, &failure_), -1);
  EXPECT_EQ(device_->LookAtMark(0, &failure_), -1);
  EXPECT_THAT(failure_.text, HasSubstr("cudaEventQuery: "));
  Break("cudaStreamCreateWithFlags");
  EXPECT_EQ(Stream(), nullptr);
  EXPECT_THAT(failure_.text, HasSubstr("cudaStreamCreateWithFlags: "));
  Break("cudaIpcGetMemHandle");
  char handle[LinkDevice::kHandleBytes];
  EXPECT_FALSE(device_->Export(handle, &failure_));
  EXPECT_THAT(failure_.text, HasSubstr("cudaIpcGetMemHandle: "));
  Break("cudaGetDeviceProperties");
  EXPECT_EQ(OpenLinkDevice(compute_, memory_, kBytes, &failure_), nullptr);
  EXPECT_THAT(failure_.text, HasSubstr("cudaGetDeviceProperties: "));
}

TEST_F(LinkDevices, HaveSoManyStreamsAndTakeThemBack) {
  Open();
  std::vector<std::unique_ptr<CopyStream>> streams;
  for (auto stream = Stream(); stream != nullptr; stream = Stream()) {
    streams.push_back(std::move(stream));
  }
  EXPECT_EQ(streams.size(), 16u);
  EXPECT_STREQ(failure_.text, "more than 16 links");
  streams.pop_back();
  EXPECT_NE(Stream(), nullptr);
}

// What a link left under way when it gave up still uses its piece for trials, and the memory that
// it was told to copy from: neither may be anybody else's before it is done.
TEST_F(LinkDevices, AreNotIdleWhileStreamsThatAreGoneHaveNotDoneWhatTheyWereTold) {
  emulation::options().lazy_streams = true;
  Open();
  auto stream = Stream();
  char* const piece = stream->trial();
  ASSERT_GE(stream->Copy(piece, stream->trial_host(), 8, &failure_), 0);
  Break("cudaStreamQuery", cudaErrorNotReady);
  stream.reset();
  EXPECT_FALSE(device_->Idle());
  const auto next = Stream();
  EXPECT_NE(static_cast<void*>(next->trial()), static_cast<void*>(piece));
  emulation::options().fail_call = "";
  for (int i = 0; i < 3 && !device_->Idle(); ++i) continue;
  EXPECT_TRUE(device_->Idle());
  EXPECT_EQ(static_cast<void*>(Stream()->trial()), static_cast<void*>(piece));
}

}  // namespace
}  // namespace headrace::cuda
