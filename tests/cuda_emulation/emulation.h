// Forced into every .cu file that a host compiler builds for tests (-include): CUDA's keywords,
// built-in variables and device functions, so that the file compiles unchanged. NVIDIA's own
// headers give types and the runtime API's declarations; runtime.cc defines the API's functions in
// place of libcudart. Never part of a shipped binary.
//
// What a kernel may not write in nvcc's syntax, worker/backend/cuda/launch.h has words for: <<<>>>
// and __shared__.
#pragma once

#ifdef __CUDACC__
#error "tests/cuda_emulation is for the host compiler"
#endif

#define HEADRACE_CUDA_EMULATION 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ error_write_HEADRACE_SHARED
#define __forceinline__ inline
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/cuda_emulation/grid.h"

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

// Of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

#include "tests/cuda_emulation/device_functions.h"

namespace headrace::emulation {

// Puts a grid behind what `stream` has to do. `drop(context)` frees the arguments afterwards.
void Enqueue(cudaStream_t stream, const Grid& grid, void (*drop)(void*));

template <typename... Parameters, typename... Arguments>
void LaunchGrid(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared_bytes,
                cudaStream_t stream, Arguments&&... arguments) {
  struct Context {
    void (*kernel)(Parameters...);
    std::tuple<std::decay_t<Parameters>...> arguments;
  };
  auto* context = new Context{kernel, {static_cast<Parameters>(arguments)...}};
  Grid grid{blocks, threads, shared_bytes, reinterpret_cast<const void*>(kernel), nullptr, context};
  grid.call = [](void* p) {
    auto* c = static_cast<Context*>(p);
    std::apply(c->kernel, c->arguments);
  };
  Enqueue(stream, grid, [](void* p) { delete static_cast<Context*>(p); });
}

}  // namespace headrace::emulation
