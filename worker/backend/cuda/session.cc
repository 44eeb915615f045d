#include "worker/backend/cuda/session.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>

#include "worker/backend/cuda/bounce.h"
#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/device_code.h"
#include "worker/backend/cuda/link_device.h"

namespace headrace::cuda {
namespace {

constexpr int kOldestForBf16 = 8;
constexpr double kProbeSeconds = 30;

using Clock = std::chrono::steady_clock;

Clock::time_point After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string Sentence(const std::string& call, cudaError_t error) {
  return call + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
}

void Tell(const std::string& text, bool no_memory, Failure* failure) {
  std::snprintf(failure->text, sizeof(failure->text), "%s", text.c_str());
  failure->no_memory = no_memory;
  // An error that the device itself had stays with its context: every call answers it.
  const cudaError_t state = cudaStreamQuery(nullptr);
  failure->lost = state != cudaSuccess && state != cudaErrorNotReady;
}

// Makes `device` the thread's. Returns what failed, or nothing.
std::string Choose(int device, int* major) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return Sentence("cudaGetDeviceCount", error);
  }
  if (device < 0 || device >= count) {
    return "device cuda:" + std::to_string(device) + " does not exist: there are " +
           std::to_string(count);
  }
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    return Sentence("cudaSetDevice", error);
  }
  if (const cudaError_t error =
          cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device);
      error != cudaSuccess) {
    return Sentence("cudaDeviceGetAttribute", error);
  }
  return "";
}

class SessionImpl final : public Session {
 public:
  ~SessionImpl() override {
    links_.reset();
    ops_.reset();
    gemm_.reset();
    bounce_.reset();
    // What cannot be given back any more is gone with the device.
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    cudaFree(memory_);
    if (pinned_ != nullptr) cudaFreeHost(pinned_);
    if (host_ != nullptr) cudaHostUnregister(host_);
  }

  bool Open(const SessionOptions& options, const GemmFactory& factory, Failure* failure) {
    int major = 0;
    std::string error = Choose(options.device, &major);
    if (error.empty() && options.bf16 && major < kOldestForBf16) {
      error = "precision bf16 needs a device of compute capability 8.0; this one has " +
              std::to_string(major) + ".x";
    }
    bool no_memory = false;
    if (error.empty()) error = TakeMemory(options, &no_memory);
    if (error.empty()) error = PinMemory(options, &no_memory);
    if (error.empty()) error = MakeOps(options, factory);
    if (error.empty()) error = OpenLinks(options.memory_bytes);
    if (!error.empty()) Tell(error, no_memory, failure);
    return error.empty();
  }

  Ops* ops() override { return ops_.get(); }
  void* memory() override { return memory_; }
  void* pinned() override { return pinned_; }
  LinkDevice* links() override { return links_.get(); }

  bool Write(void* device, const void* host, int64_t bytes, double seconds) override {
    if (error()[0] != '\0') return false;
    const Clock::time_point deadline = After(seconds);
    cudaError_t failed = cudaSuccess;
    if (IsPinned(host)) {
      failed = cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                               stream_);
      if (failed == cudaSuccess) failed = AwaitStream(deadline);
    } else {
      failed = bounce_->Write(device, host, bytes, deadline);
    }
    return Settle(failed, "copying " + std::to_string(bytes) + " bytes to the device", seconds);
  }
  bool Read(void* host, const void* device, int64_t bytes, double seconds) override {
    if (error()[0] != '\0') return false;
    const Clock::time_point deadline = After(seconds);
    cudaError_t failed = cudaSuccess;
    if (IsPinned(host)) {
      failed = cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                               stream_);
      if (failed == cudaSuccess) failed = AwaitStream(deadline);
    } else {
      failed = bounce_->Read(host, device, bytes, deadline);
    }
    return Settle(failed, "copying " + std::to_string(bytes) + " bytes from the device", seconds);
  }
  bool Wait(double seconds) override {
    const bool failed = error()[0] != '\0';
    const Clock::time_point deadline = After(seconds);
    cudaError_t state = AwaitStream(deadline);
    if (state == cudaSuccess) {
      state = Poll([this] { return links_->Idle() ? cudaSuccess : cudaErrorNotReady; }, deadline);
    }
    if (!failed) return Settle(state, "waiting for the device", seconds);
    late_ = late_ || state == cudaErrorNotReady;
    return false;
  }

  const char* error() const override {
    return error_.empty() ? ops_->error().c_str() : error_.c_str();
  }

  bool lost() const override {
    if (late_) return true;
    if (error()[0] == '\0') return false;
    const cudaError_t state = cudaStreamQuery(stream_);  // as Tell
    return state != cudaSuccess && state != cudaErrorNotReady;
  }

  int64_t pinned_bytes() const override {
    return pinned_bytes_ + host_bytes_ + Bounce::kPieces * Bounce::kPieceBytes;
  }

 private:
  std::string TakeMemory(const SessionOptions& options, bool* no_memory) {
    if (cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        error != cudaSuccess) {
      return Sentence("cudaStreamCreateWithFlags", error);
    }
    cudaError_t error = options.memory_bytes > 0
                            ? cudaMalloc(&memory_, static_cast<size_t>(options.memory_bytes))
                            : cudaSuccess;
    if (error != cudaSuccess) {
      *no_memory = error == cudaErrorMemoryAllocation;
      size_t available = 0, total = 0;
      cudaMemGetInfo(&available, &total);
      return Sentence("cudaMalloc of " + std::to_string(options.memory_bytes) + " bytes", error) +
             "; " + std::to_string(available) + " of the device's " + std::to_string(total) +
             " bytes are free";
    }
    error = cudaMemsetAsync(memory_, 0, static_cast<size_t>(options.memory_bytes), stream_);
    return error == cudaSuccess ? "" : Sentence("cudaMemsetAsync of the arena", error);
  }

  std::string PinMemory(const SessionOptions& options, bool* no_memory) {
    cudaError_t error = cudaSuccess;
    if (options.pinned_bytes > 0) {
      error = cudaMallocHost(&pinned_, static_cast<size_t>(options.pinned_bytes));
      if (error != cudaSuccess) {
        *no_memory = error == cudaErrorMemoryAllocation;
        return Sentence("cudaMallocHost of " + std::to_string(options.pinned_bytes) +
                            " bytes of pinned host memory",
                        error);
      }
      pinned_bytes_ = options.pinned_bytes;
    }
    // Without, what arrives there is copied slowly: no reason not to compute.
    void* const host = const_cast<void*>(options.host);
    if (options.host_bytes > 0 && cudaHostRegister(host, static_cast<size_t>(options.host_bytes),
                                                   cudaHostRegisterDefault) == cudaSuccess) {
      host_ = host;
      host_bytes_ = options.host_bytes;
    }
    bounce_ = std::make_unique<Bounce>();
    const char* call = "";
    error = bounce_->Open(stream_, &call);
    return error == cudaSuccess ? "" : Sentence(call, error);
  }

  std::string MakeOps(const SessionOptions& options, const GemmFactory& factory) {
    std::string error;
    gemm_ = factory(memory_, static_cast<size_t>(options.product_bytes), options.tf32, &error);
    if (gemm_ == nullptr) return error;
    void* const scratch = static_cast<char*>(memory_) + options.product_bytes;
    ops_ = CreateCudaOps(options.bf16 ? Precision::kBfloat16 : Precision::kFloat32, gemm_.get(),
                         {scratch, options.scratch_bytes}, stream_);
    return "";
  }

  std::string OpenLinks(int64_t memory_bytes) {
    DeviceFailure failure;
    links_ = OpenLinkDevice(stream_, memory_, memory_bytes, &failure);
    return failure.text;
  }

  bool IsPinned(const void* host) const {
    const auto within = [host](const void* memory, int64_t bytes) {
      const char* const base = static_cast<const char*>(memory);
      return host >= base && host < base + bytes;
    };
    return within(pinned_, pinned_bytes_) || within(host_, host_bytes_);
  }
  cudaError_t AwaitStream(Clock::time_point deadline) {
    return Poll([this] { return cudaStreamQuery(stream_); }, deadline);
  }
  // Keeps what failed; says whether nothing did.
  bool Settle(cudaError_t failed, const std::string& doing, double seconds) {
    if (failed == cudaSuccess) return true;
    if (failed == cudaErrorNotReady) {
      late_ = true;
      error_ = doing + ": the device has not done what it was told after " +
               std::to_string(static_cast<int64_t>(seconds)) + " s";
    } else {
      error_ = Sentence(doing, failed);
    }
    return false;
  }

  cudaStream_t stream_ = nullptr;
  void *memory_ = nullptr, *pinned_ = nullptr;
  int64_t pinned_bytes_ = 0;
  void* host_ = nullptr;  // the caller's, if it could be pinned
  int64_t host_bytes_ = 0;
  std::unique_ptr<Bounce> bounce_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<CudaOps> ops_;
  std::unique_ptr<LinkDevice> links_;
  std::string error_;
  bool late_ = false;
};

}  // namespace

std::unique_ptr<Session> OpenSession(const SessionOptions& options, const GemmFactory& factory,
                                     Failure* failure) {
  auto session = std::make_unique<SessionImpl>();
  if (!session->Open(options, factory, failure)) return nullptr;
  return session;
}

bool ProbeSession(int device, DeviceReport* report, Failure* failure) {
  std::string error = Choose(device, &report->major);
  const auto call = [&](const char* name, cudaError_t answer) {
    if (error.empty() && answer != cudaSuccess) error = Sentence(name, answer);
  };
  if (error.empty()) {
    call("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&report->minor,
                                                          cudaDevAttrComputeCapabilityMinor,
                                                          device));
    call("a kernel", RunNothing(nullptr));
    call("a kernel", Poll([] { return cudaStreamQuery(nullptr); }, After(kProbeSeconds)));
    size_t available = 0, total = 0;
    call("cudaMemGetInfo", cudaMemGetInfo(&available, &total));
    report->free_bytes = static_cast<int64_t>(available);
    report->total_bytes = static_cast<int64_t>(total);
  }
  if (!error.empty()) Tell(error, false, failure);
  return error.empty();
}

}  // namespace headrace::cuda
