// Kernels that show what the emulation does. Test only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace headrace::emulation {

// out[i] = i of a grid of blocks by threads in three dimensions.
cudaError_t NumberThreads(int* out, dim3 blocks, dim3 threads, cudaStream_t stream);
// out[32 · which + lane] for each collective: shuffle from lane 5, xor 3, down 4, ballot of odd
// lanes.
cudaError_t Collectives(uint32_t* out);
// d[16, 8] = a[16, 16] · b[16, 8] by one mma.sync; a and b row-major bfloat16. `through_ldmatrix`:
// the fragments come by ldmatrix from shared memory, else element by element.
cudaError_t MultiplyTile(float* d, const uint16_t* a, const uint16_t* b, bool through_ldmatrix);
// out[0] = whether all of a block's shared memory began as NaN.
cudaError_t SharedBeginsAsNan(int* out, int threads, size_t shared_bytes);
cudaError_t AddOne(float* x, int count, cudaStream_t stream);

}  // namespace headrace::emulation
