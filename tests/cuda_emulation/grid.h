// Runs kernels: one fiber a CUDA thread, one block after the other, on the calling thread.
//
// A thread runs until it waits at a barrier or a warp's collective, or returns; then the next one
// does. What CUDA calls undefined is reported: threads that meet at different barriers, lanes that
// meet at different collectives, a barrier nobody else will reach. The report names the sites; the
// grid is abandoned and the stream's error is cudaErrorLaunchFailure, as on a device.
//
// Not emulated: races between blocks, wgmma, TMA, cp.async, clusters, cooperative groups.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace headrace::emulation {

// In which order threads, and blocks, take their turns.
enum class Order { kForward, kReverse, kRandom };

struct Options {
  Order order = Order::kForward;
  uint64_t seed = 1;          // of kRandom
  bool lazy_streams = false;  // work waits until something waits for it: finds a missing wait
  int64_t memory_bytes = int64_t{1} << 30;  // of the device
  int capability = 9;                       // its compute capability: 9.0
  int gpu = 0;                              // which one it is: the last byte of its UUID
  // Device memory is a memfd, which other processes can import (cudaIpc…); without, no red zones
  // are lost to AddressSanitizer.
  bool shared_memory = false;
  // The call named here fails with `error` from its `fail_after`-th time on ("cudaMemcpyAsync").
  std::string fail_call;
  int fail_after = 1;
  cudaError_t fail_error = cudaErrorUnknown;
};
Options& options();

// What the last grid that failed was accused of; empty if none was.
const std::string& last_report();
// Memory of other processes that is open.
int imports();
// Errors as CUDA keeps them: a failed launch stays, until the device is reset.
cudaError_t& sticky_error();

// Where in a kernel a thread waits.
struct Site {
  const char* what;
  const char* file;
  int line;
};

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes = 0;
  const void* kernel = nullptr;   // for AllowSharedBytes
  void (*call)(void*) = nullptr;  // call(context) runs the kernel's body for the current thread
  void* context = nullptr;
};
void RunGrid(const Grid& grid);
// Lets a kernel have more dynamic shared memory than the 48 KiB that every kernel may.
void AllowSharedBytes(const void* kernel, size_t bytes);

// For kernels. Index of the calling thread's lane in its warp.
unsigned Lane();
void BlockBarrier(Site site);

// The lanes named in `mask` meet; the last one to come calls `op` with the mask and each lane's
// argument (indexed by lane), then all go on. `orders_memory`: as __syncwarp does and a shuffle
// does not.
using WarpOp = void (*)(unsigned mask, void** lane_arguments);
void WarpCollective(unsigned mask, Site site, void* argument, WarpOp op, bool orders_memory);
// For a WarpOp: abandons the grid.
void Fail(const std::string& what);
// "thread (3,0,0) is at __syncthreads, file:line", for a lane of the calling warp.
std::string WhereLane(int lane);

// Shared memory begins as NaN. Pieces lie apart, with bytes between that AddressSanitizer guards.
void* DynamicShared();
// The block's piece for `key`, the same for all its threads.
void* StaticShared(const void* key, size_t bytes);

}  // namespace headrace::emulation
