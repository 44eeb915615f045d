// What crosses from libheadrace_cuda.so to the worker. The module is opened with dlopen and found
// by its one symbol, headrace_cuda_module; both sides are built from the same sources, which
// `version` proves before anything else is called. worker/backend/cuda_device.h is the worker's side.
#pragma once

#include <cstdint>

#include "worker/backend/link_device.h"
#include "worker/backend/ops.h"

namespace headrace::cuda {

inline constexpr int kModuleVersion = 4;

// One device with its memory and its ops, for one stage: one stream, which ops and copies share, so
// that each sees what those before it did. Used by one thread.
class Session {
 public:
  virtual ~Session() = default;
  virtual Ops* ops() = 0;
  // The arena's memory: zero-filled, aligned to 256. Its first product_bytes + scratch_bytes are the
  // ops' own.
  virtual void* memory() = 0;
  // Host memory that the device copies from and to by itself; null without pinned_bytes.
  virtual void* pinned() = 0;
  // Copies, behind what the ops were told. Write returns once `host` may be used again, Read once
  // the bytes are there, both within about `seconds`. False: see error().
  virtual bool Write(void* device, const void* host, int64_t bytes, double seconds) = 0;
  virtual bool Read(void* host, const void* device, int64_t bytes, double seconds) = 0;
  // Waits until the device has done what it was told, by links that are gone too, at most
  // `seconds`. False: it has not, or something failed, now or before; see error(). Always waits:
  // whoever gives a session's memory back must know that nobody uses it any more.
  virtual bool Wait(double seconds) = 0;
  // What failed first: the call, CUDA's text and the op; empty if nothing did.
  virtual const char* error() const = 0;
  // After an error: the device does not answer this process any more, or not in time. A session of
  // it is not to be destroyed, for that would wait for the device.
  virtual bool lost() const = 0;
  virtual int64_t pinned_bytes() const = 0;  // of host memory, all that this session has
  // What links ask of the device. Lives as long as the session; thread-safe.
  virtual LinkDevice* links() = 0;
};

struct SessionOptions {
  int device = 0;
  int64_t memory_bytes = 0;   // of the arena, with the next two
  int64_t product_bytes = 0;  // workspace of cuBLASLt; a multiple of 256
  int64_t scratch_bytes = 0;  // of ops among themselves
  int64_t pinned_bytes = 0;   // host memory
  // Memory of the caller's to be pinned too, where the system can; must outlive the session.
  const void* host = nullptr;
  int64_t host_bytes = 0;
  bool bf16 = false;          // precision of products and attention
  bool tf32 = false;          // fp32 products by TF32
};

struct Failure {
  char text[1024];  // the call and CUDA's text, what it was for
  bool no_memory;   // there is less memory than was asked for; the text says how much there is
  bool lost;        // the device answers this process nothing any more
};

struct DeviceReport {
  int64_t free_bytes, total_bytes;  // with this process's own context already taken
  int major, minor;                 // compute capability
};

struct Module {
  int version;
  // The caller owns the session. Null: see *failure.
  Session* (*open)(const SessionOptions& options, Failure* failure);
  // Makes the process's context on the device, which stays, and runs a kernel. False: the device
  // cannot be computed on, see *failure.
  bool (*probe)(int device, DeviceReport* report, Failure* failure);
};

}  // namespace headrace::cuda

extern "C" const headrace::cuda::Module* headrace_cuda_module();
