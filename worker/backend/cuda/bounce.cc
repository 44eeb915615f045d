#include "worker/backend/cuda/bounce.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace headrace::cuda {
namespace {

constexpr auto kSpin = std::chrono::microseconds(100);
constexpr auto kSleep = std::chrono::microseconds(20);

}  // namespace

cudaError_t Poll(const std::function<cudaError_t()>& query,
                 std::chrono::steady_clock::time_point deadline) {
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    const cudaError_t state = query();
    if (state != cudaErrorNotReady) return state;
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return state;
    if (now - begin < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

Bounce::~Bounce() {
  for (cudaEvent_t event : passed_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (memory_ != nullptr) cudaFreeHost(memory_);
}

cudaError_t Bounce::Open(cudaStream_t stream, const char** call) {
  stream_ = stream;
  *call = "cudaMallocHost";
  void* memory = nullptr;
  if (const cudaError_t error = cudaMallocHost(&memory, kPieces * kPieceBytes);
      error != cudaSuccess) {
    return error;
  }
  memory_ = static_cast<char*>(memory);
  *call = "cudaEventCreateWithFlags";
  for (cudaEvent_t& event : passed_) {
    const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t Bounce::Write(void* device, const void* host, int64_t bytes,
                          std::chrono::steady_clock::time_point deadline) {
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    const auto length = static_cast<size_t>(std::min(kPieceBytes, bytes - at));
    char* const piece = memory_ + next_ * kPieceBytes;
    cudaEvent_t passed = passed_[next_];
    next_ = (next_ + 1) % kPieces;
    cudaError_t error = Poll([passed] { return cudaEventQuery(passed); }, deadline);
    if (error != cudaSuccess) return error;
    std::memcpy(piece, static_cast<const char*>(host) + at, length);
    error = cudaMemcpyAsync(static_cast<char*>(device) + at, piece, length, cudaMemcpyHostToDevice,
                            stream_);
    if (error == cudaSuccess) error = cudaEventRecord(passed, stream_);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t Bounce::Read(void* host, const void* device, int64_t bytes,
                         std::chrono::steady_clock::time_point deadline) {
  for (int64_t at = 0; at < bytes; at += kPieces * kPieceBytes) {
    const auto length = static_cast<size_t>(std::min(kPieces * kPieceBytes, bytes - at));
    // Behind whatever the pieces still serve: the stream does one thing after the other.
    cudaError_t error = cudaMemcpyAsync(memory_, static_cast<const char*>(device) + at, length,
                                        cudaMemcpyDeviceToHost, stream_);
    if (error == cudaSuccess) {
      error = Poll([this] { return cudaStreamQuery(stream_); }, deadline);
    }
    if (error != cudaSuccess) return error;
    std::memcpy(static_cast<char*>(host) + at, memory_, length);
  }
  return cudaSuccess;
}

}  // namespace headrace::cuda
