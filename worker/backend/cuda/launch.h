// How kernels are started and how they get shared memory: nvcc's own syntax (<<<>>>, __shared__)
// under names that tests/cuda_emulation can give a meaning on a CPU.
//
//   HEADRACE_SHARED(float, tile, [32][33]);     // __shared__ float tile[32][33]
//   HEADRACE_DYNAMIC_SHARED(float, buffer);     // extern __shared__ float buffer[]
//   Launch(Kernel<float>, blocks, threads, shared_bytes, stream, arguments…);
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace headrace::cuda {

// Grids have at least one block: a caller with nothing to do does not launch. Returns what CUDA
// says of the launch itself; what goes wrong while the kernel runs shows when its stream is waited
// for.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  // An earlier call's answer waits here to be asked for, "not ready" of a query too.
  cudaGetLastError();
#ifdef HEADRACE_CUDA_EMULATION
  emulation::LaunchGrid(kernel, blocks, threads, shared_bytes, stream,
                        std::forward<Arguments>(arguments)...);
#else
  kernel<<<blocks, threads, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
#endif
  return cudaGetLastError();
}

// Lets `kernel` have more dynamic shared memory than the 48 KiB that every kernel may.
template <typename... Parameters>
cudaError_t AllowShared(void (*kernel)(Parameters...), int bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace headrace::cuda

#ifdef HEADRACE_CUDA_EMULATION
#define HEADRACE_SHARED(Type, name, dimensions)                                  \
  Type(&name) dimensions =                                                       \
      *reinterpret_cast<Type(*) dimensions>(::headrace::emulation::StaticShared( \
          [] {                                                                   \
            static char key;                                                     \
            return &key;                                                         \
          }(),                                                                   \
          sizeof(Type dimensions)))
#define HEADRACE_DYNAMIC_SHARED(Type, name) \
  Type* name = static_cast<Type*>(::headrace::emulation::DynamicShared())
#else
#define HEADRACE_SHARED(Type, name, dimensions) __shared__ __align__(16) Type name dimensions
#define HEADRACE_DYNAMIC_SHARED(Type, name)                         \
  extern __shared__ __align__(16) unsigned char headrace_shared_[]; \
  Type* name = reinterpret_cast<Type*>(headrace_shared_)
#endif
