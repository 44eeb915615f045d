#include "worker/backend/cuda/session.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>

#include "worker/backend/cuda/cuda_ops.h"

namespace headrace::cuda {
namespace {

constexpr size_t kWorkspaceBytes = 32 << 20;  // what NVIDIA recommends for compute capability 9.0
constexpr int kOldestForBf16 = 8;
constexpr auto kPoll = std::chrono::microseconds(50);

std::string Failure(const std::string& call, cudaError_t error) {
  return call + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
}

class SessionImpl final : public Session {
 public:
  ~SessionImpl() override {
    ops_.reset();
    gemm_.reset();
    // What cannot be given back any more is gone with the device.
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    for (void* piece : {memory_, scratch_, workspace_}) cudaFree(piece);
  }

  // Returns what failed, or nothing.
  std::string Open(const SessionOptions& options, const GemmFactory& factory) {
    if (std::string error = Choose(options); !error.empty()) return error;
    if (cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        error != cudaSuccess) {
      return Failure("cudaStreamCreateWithFlags", error);
    }
    std::string error = Take("the arena", options.memory_bytes, &memory_);
    if (error.empty()) error = Take("scratch memory", options.scratch_bytes, &scratch_);
    if (error.empty()) error = Take("cuBLASLt's workspace", kWorkspaceBytes, &workspace_);
    if (!error.empty()) return error;
    if (cudaError_t failed =
            cudaMemsetAsync(memory_, 0, static_cast<size_t>(options.memory_bytes), stream_);
        failed != cudaSuccess) {
      return Failure("cudaMemsetAsync of the arena", failed);
    }
    gemm_ = factory(workspace_, kWorkspaceBytes, options.tf32, &error);
    if (gemm_ == nullptr) return error;
    ops_ = CreateCudaOps(options.bf16 ? Precision::kBfloat16 : Precision::kFloat32, gemm_.get(),
                         {scratch_, options.scratch_bytes}, stream_);
    return "";
  }

  Ops* ops() override { return ops_.get(); }
  void* memory() override { return memory_; }
  bool Write(void* device, const void* host, int64_t bytes) override {
    return Copy("copying to the device", device, host, bytes, cudaMemcpyHostToDevice);
  }
  bool Read(void* host, const void* device, int64_t bytes) override {
    return Copy("copying from the device", host, device, bytes, cudaMemcpyDeviceToHost);
  }

  // Polls: cudaStreamSynchronize has no deadline.
  bool Wait(double seconds) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (error()[0] == '\0') {
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state == cudaSuccess) return true;
      if (state != cudaErrorNotReady) {
        Fail(Failure("waiting for the device", state));
      } else if (std::chrono::steady_clock::now() >= deadline) {
        Fail("the device has not done what it was told after " + std::to_string(seconds) + " s");
      } else {
        std::this_thread::sleep_for(kPoll);
      }
    }
    return false;
  }

  const char* error() const override {
    return error_.empty() ? ops_->error().c_str() : error_.c_str();
  }

 private:
  static std::string Choose(const SessionOptions& options) {
    int count = 0, major = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
      return Failure("cudaGetDeviceCount", error);
    }
    if (options.device < 0 || options.device >= count) {
      return "device cuda:" + std::to_string(options.device) + " does not exist: there are " +
             std::to_string(count);
    }
    if (const cudaError_t error = cudaSetDevice(options.device); error != cudaSuccess) {
      return Failure("cudaSetDevice", error);
    }
    if (const cudaError_t error =
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options.device);
        error != cudaSuccess) {
      return Failure("cudaDeviceGetAttribute", error);
    }
    if (options.bf16 && major < kOldestForBf16) {
      return "precision bf16 needs a device of compute capability 8.0; this one has " +
             std::to_string(major) + ".x";
    }
    return "";
  }

  static std::string Take(const std::string& what, int64_t bytes, void** piece) {
    if (bytes == 0) return "";
    const cudaError_t error = cudaMalloc(piece, static_cast<size_t>(bytes));
    if (error == cudaSuccess) return "";
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    return Failure("cudaMalloc of " + std::to_string(bytes) + " bytes for " + what, error) + "; " +
           std::to_string(available) + " of the device's " + std::to_string(total) +
           " bytes are free";
  }

  bool Copy(const char* what, void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    if (error()[0] != '\0') return false;
    const cudaError_t failed = cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_);
    if (failed != cudaSuccess) {
      Fail(Failure(std::string(what) + " " + std::to_string(bytes) + " bytes", failed));
      return false;
    }
    return Wait(kCopySeconds);
  }

  void Fail(std::string text) {
    if (error_.empty()) error_ = std::move(text);
  }

  static constexpr double kCopySeconds = 60;

  cudaStream_t stream_ = nullptr;
  void *memory_ = nullptr, *scratch_ = nullptr, *workspace_ = nullptr;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<CudaOps> ops_;
  std::string error_;
};

}  // namespace

std::unique_ptr<Session> OpenSession(const SessionOptions& options, const GemmFactory& factory,
                                     std::string* error) {
  auto session = std::make_unique<SessionImpl>();
  *error = session->Open(options, factory);
  if (!error->empty()) return nullptr;
  return session;
}

}  // namespace headrace::cuda
