// What crosses from libheadrace_cuda.so to the worker. The module is opened with dlopen and found
// by its one symbol, headrace_cuda_module; both sides are built from the same sources, which
// `version` proves before anything else is called.
#pragma once

#include <cstdint>

#include "worker/backend/ops.h"

namespace headrace::cuda {

inline constexpr int kModuleVersion = 1;

// One device with its memory and its ops, for one stage. Used by one thread, but for error().
class Session {
 public:
  virtual ~Session() = default;
  virtual Ops* ops() = 0;
  // The arena's memory: zero-filled, aligned to 256.
  virtual void* memory() = 0;
  // Copies and waits. False: see error().
  virtual bool Write(void* device, const void* host, int64_t bytes) = 0;
  virtual bool Read(void* host, const void* device, int64_t bytes) = 0;
  // Waits until the device has done what it was told, at most `seconds`. False: it has not, or it
  // failed; see error().
  virtual bool Wait(double seconds) = 0;
  // What failed first: the call, CUDA's text and the op; empty if nothing did.
  virtual const char* error() const = 0;
};

struct SessionOptions {
  int device = 0;
  int64_t memory_bytes = 0;   // of the arena
  int64_t scratch_bytes = 0;  // of ops among themselves
  bool bf16 = false;          // precision of products and attention
  bool tf32 = false;          // fp32 products by TF32
};

struct Module {
  int version;
  // The caller owns the session. Null: `error` (of `error_bytes`) says the call and CUDA's text.
  Session* (*open)(const SessionOptions& options, char* error, int64_t error_bytes);
};

}  // namespace headrace::cuda

extern "C" const headrace::cuda::Module* headrace_cuda_module();
