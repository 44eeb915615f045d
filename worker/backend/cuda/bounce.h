// Copies between host memory of any kind and the device, through a few pieces of pinned memory that
// take turns: the runtime's own copies of pageable memory wait for the device without a deadline.
//
//   host ─memcpy─▶ piece 0 ═copy═▶ device        a piece is used again once its event has passed
//                  piece 1 ═copy═▶
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace headrace::cuda {

// Asks until `query` answers something else than cudaErrorNotReady, or it is `deadline` (then that):
// without sleeping at first, since most waits are short.
cudaError_t Poll(const std::function<cudaError_t()>& query,
                 std::chrono::steady_clock::time_point deadline);

// Used by one thread.
class Bounce {
 public:
  static constexpr int kPieces = 4;
  static constexpr int64_t kPieceBytes = 1 << 20;

  Bounce() = default;
  ~Bounce();
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;

  // Takes the pieces. `stream` must outlive this. An error names its call in *call.
  cudaError_t Open(cudaStream_t stream, const char** call);
  // Returns once all of `host` lies in pieces. cudaErrorNotReady: the device did not get to it.
  cudaError_t Write(void* device, const void* host, int64_t bytes,
                    std::chrono::steady_clock::time_point deadline);
  // Returns once all of it is in `host`.
  cudaError_t Read(void* host, const void* device, int64_t bytes,
                   std::chrono::steady_clock::time_point deadline);

 private:
  cudaStream_t stream_ = nullptr;
  char* memory_ = nullptr;
  cudaEvent_t passed_[kPieces] = {};
  int next_ = 0;
};

}  // namespace headrace::cuda
